//! What reaches inside: servers on ports, raw streams, archives, watches.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Stdio};

use ramet_client::Error;
use ramet_client::api::{
    ArchiveFormat, ChangeKind, Code, ReadArchiveQuery, WatchQuery, WriteArchiveQuery,
};
use ramet_client::reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bed::{Sandbox, directory, eventually, fresh, node, patience, ramet, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    a_server_inside_is_reached_over_http,
    a_websocket_goes_through,
    raw_streams_reach_the_machine_of_the_moment,
    ports_are_forwarded_to_this_machine,
    a_tree_of_a_thousand_files_moves,
    harmful_archives_are_refused,
    changes_are_told_as_they_happen,
];

/// Answers each connection, when it has read it to its end, with its length and the content of `/srv/who`.
const COUNTER: &str = "\
import socketserver, threading
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        count = 0
        while data := self.request.recv(65536): count += len(data)
        self.request.sendall(f'{count} {open(\"/srv/who\").read()}'.encode())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
Server(('127.0.0.1', 7000), Handler).serve_forever()
";

/// Speaks enough of WebSocket to answer one short frame in capitals.
const ECHO: &str = "\
import base64, hashlib, socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(':')
            head[name.lower()] = value.strip()
        key = head['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n'
            f'Connection: Upgrade\\r\\nSec-WebSocket-Accept: {accept}\\r\\n\\r\\n').encode())
        length = self.rfile.read(2)[1] & 127
        mask = self.rfile.read(4)
        text = bytes(c ^ mask[i % 4] for i, c in enumerate(self.rfile.read(length)))
        self.wfile.write(bytes([0x81, length]) + text.upper())
        self.rfile.read(1)
socketserver.TCPServer(('127.0.0.1', 9000), Handler).serve_forever()
";

/// Starts a program that listens, and waits until it does.
fn serving(sandbox: &Sandbox<'_>, line: &str, port: u16) {
    sandbox.sh(&format!("setsid {line} </dev/null >/tmp/server.log 2>&1 &"));
    eventually("the server listens", || {
        let ports = wait(node().client.ports(&sandbox.id)).expect("ports");
        ports.iter().any(|found| found.port == port && found.protocol == "tcp")
    });
}

/// What a server in a sandbox answers.
fn page(sandbox: &Sandbox<'_>, port: u16, path: &str) -> (u16, String) {
    let request = node().client.port_request(Method::GET, &sandbox.id, port, path).unwrap();
    wait(async {
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    })
}

fn a_server_inside_is_reached_over_http() {
    let sandbox = fresh("server");
    assert!(wait(node().client.ports(&sandbox.id)).unwrap().is_empty());
    let (status, text) = page(&sandbox, 8000, "/");
    assert!(status == 502 && text.contains("connection_refused"), "{text}");
    sandbox.put("/srv/www/index.html", "source");
    serving(&sandbox, "python3 -m http.server --directory /srv/www 8000", 8000);
    assert_eq!(page(&sandbox, 8000, "/"), (200, "source".to_owned()));
    assert_eq!(page(&sandbox, 8000, "/none").0, 404);
    // The server goes on in a fork, with the fork's files.
    let child = sandbox.fork(1).remove(0);
    child.put("/srv/www/index.html", "child");
    assert_eq!(page(&child, 8000, "/"), (200, "child".to_owned()));
    assert_eq!(page(&sandbox, 8000, "/"), (200, "source".to_owned()));
    let other = node().other.port_request(Method::GET, &sandbox.id, 8000, "/").unwrap();
    assert_eq!(wait(other.send()).unwrap().status(), 404, "it is nobody else's");
}

fn a_websocket_goes_through() {
    let sandbox = fresh("websocket");
    sandbox.put("/srv/echo.py", ECHO);
    serving(&sandbox, "python3 /srv/echo.py", 9000);
    let head = format!(
        "GET /v1/sandboxes/{}/ports/9000/chat HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        sandbox.id,
        node().token()
    );
    let mut stream = TcpStream::connect(node().address()).unwrap();
    stream.set_read_timeout(Some(patience())).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    // One text frame, masked with zeros.
    stream.write_all(b"\x81\x85\0\0\0\0hello").unwrap();
    let mut frame = [0; 7];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(&frame, b"\x81\x05HELLO");
}

/// Sends bytes to a port and gives what comes back after their end.
async fn counted(id: &str, bytes: usize) -> Result<String, Error> {
    let mut stream = node().client.tcp(id, 7000).await?;
    stream.write_all(&vec![7; bytes]).await.map_err(Error::Source)?;
    stream.shutdown().await.map_err(Error::Source)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(Error::Source)?;
    Ok(answer)
}

fn raw_streams_reach_the_machine_of_the_moment() {
    let sandbox = fresh("raw");
    sandbox.put("/srv/count.py", COUNTER);
    sandbox.put("/srv/who", "first");
    serving(&sandbox, "python3 /srv/count.py", 7000);
    assert_eq!(wait(counted(&sandbox.id, 1_000_000)).unwrap(), "1000000 first");
    sandbox.checkpoint("before");
    sandbox.put("/srv/who", "second");
    let open = wait(node().client.tcp(&sandbox.id, 7000)).unwrap();
    assert_eq!(wait(counted(&sandbox.id, 0)).unwrap(), "0 second");
    sandbox.rewind("before");
    let ended = wait(async {
        let mut open = open;
        let mut rest = Vec::new();
        tokio::time::timeout(patience(), open.read_to_end(&mut rest)).await
    });
    assert!(ended.is_ok(), "a stream to the old machine ends with it");
    assert_eq!(wait(counted(&sandbox.id, 5)).unwrap(), "5 first", "the server is there again");
    assert_eq!(refusal(wait(node().client.tcp(&sandbox.id, 7001))), Code::ConnectionRefused);
    sandbox.pause();
    assert_eq!(refusal(wait(node().client.tcp(&sandbox.id, 7000))), Code::WrongState);
}

/// A run of `ramet forward`, killed if it is still there.
struct Forward(Child);

impl Drop for Forward {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ports_are_forwarded_to_this_machine() {
    let sandbox = fresh("forward");
    sandbox.put("/srv/count.py", COUNTER);
    sandbox.put("/srv/who", "parent");
    serving(&sandbox, "python3 /srv/count.py", 7000);
    let mut command = ramet();
    command.env("RAMET_URL", format!("http://{}", node().address()));
    command.env("RAMET_TOKEN", node().token()).args(["forward", &sandbox.id, "0:7000"]);
    let mut forward = Forward(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(forward.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(' ').next().unwrap().to_owned();
    let ask = |bytes: usize| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(patience())).unwrap();
        stream.write_all(&vec![1; bytes]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..16).map(|number| scope.spawn(move || (number, ask(number * 1000)))).collect();
        for asked in asked {
            let (number, answer) = asked.join().unwrap();
            assert_eq!(answer, format!("{} parent", number * 1000));
        }
    });
    let child = sandbox.fork(1).remove(0);
    child.put("/srv/who", "winner");
    sandbox.promote(&child);
    assert_eq!(ask(3), "3 winner", "new connections reach the machine that goes on");
    let pid = nix::unistd::Pid::from_raw(forward.0.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(forward.0.wait().unwrap().success(), "Ctrl-C is its end");
}

fn a_tree_of_a_thousand_files_moves() {
    let sandbox = fresh("archive");
    sandbox.py(
        "for d in range(10):\n    os.makedirs(f'/srv/tree/{d}/deep')\n    for f in range(100): open(f'/srv/tree/{d}/deep/{f}', 'w').write(f'{d} {f}\\n' * f)",
    );
    sandbox.sh("cd /srv/tree; ln -s 0/deep link; ln 0/deep/7 again; chown 7:8 3; chmod 4711 3; truncate -s 20M holes");
    let sums = "cd /srv/tree && { find . -type f | sort | xargs sha256sum; find . -printf '%p %y %m %U %G %l\\n' | sort; } | sha256sum";
    let expected = sandbox.sh(sums);
    let (path, format) = ("/srv/tree".to_owned(), ArchiveFormat::TarGz);
    let archive = wait(async {
        let query = ReadArchiveQuery { path: path.clone(), format };
        let mut reader = node().client.read_archive(&sandbox.id, &query).await?;
        let mut bytes = Vec::new();
        while let Some(more) = reader.next().await? {
            bytes.extend_from_slice(&more);
        }
        Ok::<_, Error>(bytes)
    })
    .unwrap();
    assert!(archive.len() < 10 << 20, "{} bytes", archive.len());
    let other = fresh("unpacked");
    let query = WriteArchiveQuery { path, format, owner: None };
    let archive = std::io::Cursor::new(archive);
    let unpacked = wait(node().client.write_archive(&other.id, &query, archive)).unwrap();
    assert_eq!(unpacked.files, 1001);
    assert_eq!(other.sh(sums), expected);
    assert_eq!(other.sh("stat -c %h /srv/tree/again; du -k /srv/tree/holes | cut -f1"), "2\n0");
    // The same by hand, there and back.
    let here = directory("archive").join("tree");
    let (here, from) = (here.to_str().unwrap(), format!("{}:/srv/tree", sandbox.id));
    node().ramet(&["cp", &from, here]).ok();
    node().ramet(&["cp", here, &format!("{}:/srv/back", other.id)]).ok();
    assert_eq!(other.sh("diff -r /srv/tree /srv/back && cat /srv/back/9/deep/2"), "9 2\n9 2");
}

/// A tar archive with one entry, by hand: builders refuse such names.
fn archive_of(kind: u8, name: &str, link: &str) -> Vec<u8> {
    let mut block = [0_u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(b"00000000000");
    block[136..147].copy_from_slice(b"00000000000");
    block[148..156].copy_from_slice(b"        ");
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[257..265].copy_from_slice(b"ustar  \0");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.to_vec()
}

fn harmful_archives_are_refused() {
    let sandbox = fresh("harm");
    sandbox.sh("mkdir /srv/in; echo kept > /srv/out");
    let end = vec![0; 1024];
    let link = archive_of(b'2', "link", "/srv");
    for harm in [
        archive_of(b'0', "../out", ""),
        archive_of(b'0', "/srv/out", ""),
        archive_of(b'1', "hard", "../out"),
        archive_of(b'3', "device", ""),
        [link.clone(), archive_of(b'0', "link/out", "")].concat(),
        [link, archive_of(b'5', "link/new", "")].concat(),
        vec![b'x'; 2048],
    ] {
        let query = WriteArchiveQuery { path: "/srv/in".to_owned(), ..Default::default() };
        let harm = std::io::Cursor::new([harm, end.clone()].concat());
        let refused = wait(node().client.write_archive(&sandbox.id, &query, harm));
        assert_eq!(refusal(refused), Code::BadRequest);
    }
    assert_eq!(sandbox.sh("cat /srv/out; ls /srv"), "kept\nin\nout");
}

fn changes_are_told_as_they_happen() {
    let sandbox = fresh("watch");
    sandbox.sh("mkdir -p /srv/seen");
    let query = WatchQuery { path: "/srv/seen".to_owned(), recursive: true };
    let mut watch = wait(node().client.watch_files(&sandbox.id, &query)).unwrap();
    sandbox.sh("cd /srv/seen; mkdir below; echo 1 > below/f; mv below/f g; rm g");
    let mut seen = Vec::new();
    wait(async {
        while !seen.contains(&(ChangeKind::Removed, "/srv/seen/g".to_owned())) {
            let next = tokio::time::timeout(patience(), watch.next()).await.expect("in time");
            let change = next.unwrap().expect("more");
            seen.push((change.kind, change.path));
        }
    });
    for (kind, path) in [
        (ChangeKind::Created, "below"),
        (ChangeKind::Created, "below/f"),
        (ChangeKind::MovedTo, "g"),
    ] {
        assert!(seen.contains(&(kind, format!("/srv/seen/{path}"))), "{seen:?}");
    }
    sandbox.checkpoint("watched");
    sandbox.rewind("watched");
    let end = wait(async { tokio::time::timeout(patience(), watch.next()).await });
    let end = end.expect("in time").expect_err("the watched machine is gone");
    assert_eq!(end.code(), Some(Code::GuestFailed));
}
