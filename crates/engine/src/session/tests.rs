//! Sessions against an agent that follows a script.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use ramet_proto::agent::{Entry, Exec, Exited, FRAME_MAX, FileKind, WriteFile};
use serde::de::DeserializeOwned;

use super::*;

/// The agent's end of a session.
struct Peer<S> {
    reader: FrameReader<S>,
    writer: FrameWriter<S>,
}

impl<S: Read + Write> Peer<S> {
    fn receive<T: DeserializeOwned>(&mut self) -> T {
        let (channel, payload) = self.reader.next_raw().unwrap();
        assert_eq!(channel, Channel::Message);
        serde_json::from_slice(&payload).unwrap()
    }

    fn reply(&mut self, reply: &Reply) {
        self.writer.message(reply).unwrap();
    }
}

type Script = fn(&mut Peer<UnixStream>, Request);

/// An agent that answers each connection by the script.
fn scripted(script: Script) -> (Agent, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let other = stream.try_clone().unwrap();
            let mut peer =
                Peer { reader: FrameReader::new(stream), writer: FrameWriter::new(other) };
            let request = peer.receive();
            script(&mut peer, request);
        }
    });
    let open = move || UnixStream::connect(&path).map_err(Error::from);
    (Agent::new(open).with_timeout(Duration::from_secs(5)), directory)
}

fn exited(code: i32) -> Exited {
    Exited { code: Some(code), signal: None, timed_out: false, dropped_bytes: 0 }
}

fn entry(path: &str, size: u64) -> Entry {
    let kind = FileKind::File;
    let (path, mode) = (path.to_owned(), 0o644);
    let (target, end, attributes) = (None, None, Default::default());
    Entry { path, kind, size, mode, uid: 0, gid: 0, modified_ns: 0, target, end, attributes }
}

/// Echoes standard input to standard output, counts it on standard error.
fn echo(peer: &mut Peer<UnixStream>, request: Request) {
    let Request::Exec(exec) = request else { panic!("{request:?}") };
    peer.reply(&Reply::Started { pid: 7 });
    let mut count = 0;
    let mut open = exec.stdin;
    while open {
        match peer.reader.next_raw().unwrap() {
            (Channel::Stdin, bytes) => {
                count += bytes.len();
                peer.writer.bytes(Channel::Stdout, &bytes).unwrap();
            }
            (_, message) => {
                let input: Input = serde_json::from_slice(&message).unwrap();
                assert_eq!(input, Input::End {});
                open = false;
            }
        }
    }
    peer.writer.bytes(Channel::Stderr, count.to_string().as_bytes()).unwrap();
    peer.reply(&Reply::Exited(exited(3)));
}

#[test]
fn a_process_is_fed_and_collected() {
    let (agent, _directory) = scripted(echo);
    let exec = Exec { argv: vec!["cat".to_owned()], ..Exec::default() };
    // Far more than the socket's buffers hold: reading and writing must go on at once.
    let input = vec![9; 5 * FRAME_MAX + 17];
    let completed = agent.run_with_input(&exec, &input).unwrap();
    assert_eq!(completed.stdout, input);
    assert_eq!(completed.stderr, input.len().to_string().as_bytes());
    assert!(!completed.ok() && completed.exited == exited(3));
    let mut seen = Vec::new();
    let ended = agent.exec(&exec).unwrap().stream(|output| seen.push(output.clone())).unwrap();
    assert_eq!(ended, exited(3));
    assert_eq!(seen, [Output::Stderr(b"0".to_vec()), Output::Exited(exited(3))]);
}

/// Reads a file with a hole; refuses others.
fn one_file(peer: &mut Peer<UnixStream>, request: Request) {
    match request {
        Request::ReadFile(file) if file.path == "/there" => {
            peer.reply(&Reply::Stat(entry("/there", 9)));
            peer.writer.bytes(Channel::Stdout, b"abc").unwrap();
            peer.reply(&Reply::Hole { length: 4 });
            peer.writer.bytes(Channel::Stdout, b"de").unwrap();
            peer.reply(&Reply::Done {});
        }
        Request::WriteFile(file) => {
            let mut size = 0;
            loop {
                match peer.reader.next_raw().unwrap() {
                    (Channel::Stdin, bytes) => size += bytes.len() as u64,
                    (_, message) => match serde_json::from_slice(&message).unwrap() {
                        Input::Hole { length } => size += length,
                        _ => break,
                    },
                }
            }
            peer.reply(&Reply::Stat(entry(&file.path, size)));
        }
        other => peer.reply(&Reply::Error(Failure {
            code: "not_found".to_owned(),
            message: format!("{other:?}"),
        })),
    }
}

#[test]
fn files_keep_holes_and_refusals_their_codes() {
    let (agent, _directory) = scripted(one_file);
    assert_eq!(agent.read_file("/there").unwrap(), b"abc\0\0\0\0de");
    assert_eq!(agent.read_file("/elsewhere").unwrap_err().code(), Some("not_found"));
    assert_eq!(agent.remove("/x", true).unwrap_err().code(), Some("not_found"));
    assert_eq!(
        agent.write_file("/new", &vec![1; FRAME_MAX * 2]).unwrap().size,
        FRAME_MAX as u64 * 2
    );
    let file = WriteFile { path: "/h".to_owned(), ..WriteFile::default() };
    let mut writer = agent.create_file(file).unwrap();
    writer.data(b"ab").unwrap();
    writer.hole(10).unwrap();
    assert_eq!(writer.finish().unwrap(), entry("/h", 12));
}

#[test]
fn a_reply_to_something_else_is_refused() {
    let (agent, _directory) = scripted(|peer, _| peer.reply(&Reply::Started { pid: 1 }));
    assert!(matches!(agent.usage(), Err(Error::Protocol(_))));
    assert!(matches!(agent.stat("/"), Err(Error::Protocol(_))));
    let (agent, _directory) = scripted(|_, _| {});
    assert!(matches!(agent.processes(), Err(Error::Closed)));
    let (agent, _directory) = scripted(|peer, _| drop(peer.reader.next_raw()));
    let agent = agent.with_timeout(Duration::from_millis(20));
    assert!(matches!(agent.processes(), Err(Error::Timeout)));
}

#[test]
fn a_dialled_stream_is_raw_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let other = stream.try_clone().unwrap();
        let mut peer = Peer { reader: FrameReader::new(stream), writer: FrameWriter::new(other) };
        assert_eq!(peer.receive::<Request>(), Request::Dial(Dial::Tcp { port: 80 }));
        peer.reply(&Reply::Done {});
        { peer.writer.get_ref() }.write_all(b"raw").unwrap();
        let mut rest = Vec::new();
        peer.reader.into_inner().read_to_end(&mut rest).unwrap();
        rest
    });
    let agent = Agent::new(move || TcpStream::connect(address).map_err(Error::from));
    let mut stream = agent.dial(Dial::Tcp { port: 80 }).unwrap();
    let mut bytes = [0; 3];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"raw");
    stream.write_all(b"back").unwrap();
    stream.end().unwrap();
    assert_eq!(peer.join().unwrap(), b"back");
}
