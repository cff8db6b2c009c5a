//! The software host for real. Needs what `cargo xtask guest` makes, and about a minute:
//! `cargo test -p ramet-engine host::live -- --ignored`.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ramet_proto::agent::Exec;

use super::{Error, Options, SoftwareHost, kit};

const STOP_TIME: Duration = Duration::from_secs(60);

fn guest_dir() -> PathBuf {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest");
    env::var_os("RAMET_GUEST_DIR").map_or(usual, PathBuf::from)
}

fn options(dir: &Path) -> Options {
    let mut options =
        Options::of_guest_dir(&guest_dir(), dir.join("data"), dir.join("console.log"));
    options.memory_mib = 1024;
    options
}

fn text(host: &SoftwareHost, line: &str) -> String {
    let completed = host.agent().shell(line).unwrap();
    assert!(completed.ok(), "{line}: {completed:?}");
    completed.text()
}

#[test]
#[ignore = "starts an emulated machine twice"]
fn files_and_ports_work_and_the_data_disk_outlives_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::write(&program, "#!/bin/sh\necho from the kit\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let image = dir.path().join("kit");
    let item = kit::Item { path: "bin/program".into(), source: program.clone() };
    kit::build(&[item], &image).unwrap();
    let mut options = options(dir.path());
    options.kit = Some(image);
    options.forward = vec![8000];

    let host = SoftwareHost::start(&options).unwrap();
    assert_eq!(text(&host, "ls /dev/kvm"), "/dev/kvm\n");
    assert_eq!(text(&host, "/kit/bin/program"), "from the kit\n");
    sparse_file_goes_in_and_out(&host, dir.path());
    forwarded_port_answers(&host);
    no_way_out(&host);
    text(&host, "echo kept > /root/kept");
    assert!(host.stop(STOP_TIME));

    let host = SoftwareHost::start(&options).unwrap();
    assert_eq!(text(&host, "cat /root/kept"), "kept\n");
    let second = SoftwareHost::start(&options).err().unwrap().to_string();
    assert!(second.contains("lock"), "{second}");
    assert!(host.stop(STOP_TIME));
}

fn sparse_file_goes_in_and_out(host: &SoftwareHost, dir: &Path) {
    let (source, copy) = (dir.join("source"), dir.join("copy"));
    let file = File::create(&source).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[42; 300_000], 100 << 20).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o750)).unwrap();
    host.put_file(&source, "/root/sub/sparse").unwrap();
    assert_eq!(text(host, "stat -c '%s %a' /root/sub/sparse"), "1073741824 750\n");
    host.get_file("/root/sub/sparse", &copy).unwrap();
    let metadata = fs::metadata(&copy).unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (1 << 30, 0o750));
    assert!(metadata.blocks() * 512 < 4 << 20);
    let mut bytes = vec![0; 300_002];
    File::open(&copy).unwrap().read_exact_at(&mut bytes, (100 << 20) - 1).unwrap();
    assert!(bytes[0] == 0 && bytes[300_001] == 0);
    assert!(bytes[1..300_001].iter().all(|byte| *byte == 42));
    let missing = host.get_file("/root/nothing", &copy).unwrap_err();
    assert!(matches!(missing, Error::Agent { source, .. } if source.code() == Some("not_found")));
}

fn forwarded_port_answers(host: &SoftwareHost) {
    let address = host.forwarded(8000).unwrap();
    assert_eq!(host.forwarded(8001), None);
    let argv = ["python3", "-u", "-m", "http.server", "-d", "/kit", "8000"];
    let mut server = host
        .agent()
        .exec(&Exec { argv: argv.map(str::to_owned).to_vec(), ..Exec::default() })
        .unwrap();
    server.next().unwrap(); // it says that it serves
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /bin/program HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("echo from the kit\n"), "{answer}");
    server.input().signal(9).unwrap();
}

fn no_way_out(host: &SoftwareHost) {
    // The gateway leads to services of this machine unless the network is restricted.
    let address = host.forwarded(8000).unwrap();
    let script =
        format!("import socket; socket.create_connection(('10.0.2.2', {}), 3)", address.port());
    let argv = ["python3", "-c", &script].map(str::to_owned).to_vec();
    let completed = host.agent().run(&Exec { argv, ..Exec::default() }).unwrap();
    assert!(!completed.ok());
}

#[test]
#[ignore = "starts an emulated machine"]
fn a_machine_that_cannot_boot_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.base = dir.path().join("no-filesystem");
    File::create(&options.base).unwrap().set_len(1 << 20).unwrap();
    let error = SoftwareHost::start(&options).err().unwrap().to_string();
    assert!(error.contains("boot failed"), "{error}");
}
