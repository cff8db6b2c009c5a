//! rametd in the software host: an emulated machine with KVM of its own.
//!
//! The host gets a kit with the programs and the files of the guest, and a data disk that outlives it;
//! the API's port is forwarded to the loopback interface, behind a [`Gate`]. rametd is a process of the host's agent.
//! When rametd dies it is started again in the same host, whose sandboxes live on; when the host
//! dies, everything is started anew.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use ramet_engine::host::kit::{self, Item};
use ramet_engine::host::{Options, SoftwareHost};
use ramet_engine::session::{Output, ProcessInput, ProcessOutput};
use ramet_proto::agent::{Exec, WriteFile};

use super::gate::Gate;
use super::{END_TIME, Event, FAILURES_MAX, FINE, PORT, Plan, Verdict, next_event};
use crate::failure::Failure;
use crate::node::home::{AUTHORITY, replace};
use crate::node::names::Domain;
use crate::node::start;

/// Files of the guest that the node in the host needs.
const KIT_FILES: [&str; 4] = ["vmlinux", "initramfs.cpio", "base.erofs", "data.ext4"];
/// The token inside.
const TOKEN: &str = "/run/ramet-node/token";
/// Port inside that names lead to.
const NAMES_PORT: u16 = 7879;
/// State of rametd inside; on the data disk.
const STATE: &str = "/var/lib/ramet";
/// Where the emulator answers questions for names.
const DNS: &str = "10.0.2.3";
/// How long the host may take to shut down.
const STOP_TIME: Duration = Duration::from_secs(30);
/// Memory of the host, if nobody asks for another.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 4096..=16384;

/// Runs the host once, to its end.
pub fn run(
    plan: &Plan,
    token: &str,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Verdict, Failure> {
    let options = prepare(plan)?;
    plan.home.set_stage("booting the software host");
    let host = match boot(options, sender, events) {
        Booted::Host(host) => *host,
        Booted::Failed(reason) => return Ok(Verdict::Again(reason)),
        Booted::Stopped => return Ok(Verdict::Stopped),
    };
    eprintln!("keeper: the software host is up after {:.1} s", host.boot_time().as_secs_f64());
    let verdict = serve(plan, &host, token, sender, events);
    if !host.stop(STOP_TIME) {
        eprintln!("keeper: the software host did not shut down in time and was killed");
    }
    verdict
}

enum Booted {
    Host(Box<SoftwareHost>),
    Failed(String),
    Stopped,
}

/// Boots on another thread, so that a signal is heeded meanwhile. The thread is left to itself then:
/// the emulator ends with this process.
fn boot(options: Options, sender: &Sender<Event>, events: &Receiver<Event>) -> Booted {
    let sender = sender.clone();
    thread::spawn(move || {
        let host = SoftwareHost::start(&options).map_err(|error| error.to_string());
        // Nobody listens only when the keeper ends.
        let _ = sender.send(Event::Host(Box::new(host)));
    });
    loop {
        match events.recv() {
            Ok(Event::Host(host)) => {
                return host.map_or_else(Booted::Failed, |host| Booted::Host(Box::new(host)));
            }
            Ok(Event::Ended(_)) => {}
            Ok(Event::Stop) | Err(_) => return Booted::Stopped,
        }
    }
}

/// Runs rametd in the host, again and again, until it is told to stop or the host is lost.
fn serve(
    plan: &Plan,
    host: &SoftwareHost,
    token: &str,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Verdict, Failure> {
    let lost = |error: &dyn std::fmt::Display| {
        Ok(Verdict::Again(format!("lost the software host: {error}\n{}", host.console_tail())))
    };
    if let Err(error) = give_token(host, token) {
        return lost(&error);
    }
    let Some(address) = host.forwarded(PORT) else { return lost(&"its port is not forwarded") };
    let gate = match Gate::open(0, address) {
        Ok(gate) => gate,
        Err(error) => return lost(&error),
    };
    let domain = plan.options.names.e2b_domain.as_ref();
    let _names = domain.map(|domain| open_names(host, domain)).transpose()?;
    let authority = format!("{STATE}/{AUTHORITY}");
    plan.publish(format!("http://{}", gate.address()))?;
    let mut failures = 0;
    loop {
        plan.home.set_stage("warming the template");
        let began = Instant::now();
        let (output, mut input) = match host.agent().exec(&rametd(&plan.options)) {
            Ok(process) => process.split(),
            Err(error) => return lost(&error),
        };
        follow(output, sender.clone());
        match next_event(plan, events, || host.agent().read_file(&authority).ok()) {
            Ok(Event::Ended(how)) if !host.ended() => {
                failures = if began.elapsed() >= FINE { 1 } else { failures + 1 };
                eprintln!("keeper: {how}");
                if failures >= FAILURES_MAX {
                    return Err(Failure::new(format!("the node ends again and again: {how}")));
                }
                thread::sleep(Duration::from_secs(1));
            }
            Ok(Event::Ended(how)) => return lost(&how),
            _ => {
                stop(&mut input, events);
                return Ok(Verdict::Stopped);
            }
        }
    }
}

fn give_token(host: &SoftwareHost, token: &str) -> Result<(), ramet_engine::session::Error> {
    let file = WriteFile { path: TOKEN.to_owned(), mode: Some(0o600), ..WriteFile::default() };
    host.agent().write_file_from(file, token.as_bytes()).map(drop)
}

/// Opens the door that names lead to.
fn open_names(host: &SoftwareHost, domain: &Domain) -> Result<Gate, Failure> {
    let cannot = format!("cannot listen for {domain}");
    let address = host
        .forwarded(NAMES_PORT)
        .ok_or_else(|| Failure::new(format!("{cannot}: its port is not forwarded")))?;
    Gate::open(domain.port, address).map_err(|error| Failure::because(cannot, &error))
}

/// How rametd is started inside. What leaves the host there is what the network service lets pass.
fn rametd(options: &start::Options) -> Exec {
    let (store, network) = (&options.store, &options.network);
    let names = |_: &Domain| (Ipv4Addr::UNSPECIFIED, NAMES_PORT).into();
    let dns = network.dns.is_empty().then(|| format!("--dns={DNS}"));
    let words = [
        "/kit/bin/rametd",
        "--listen",
        &format!("0.0.0.0:{PORT}"),
        "--data-dir",
        STATE,
        "--token-file",
        TOKEN,
        "--host-mode",
        "software",
    ];
    let env = [
        ("RAMET_VMM", "/kit/bin/ramet-vmm"),
        ("RAMET_NET", "/kit/bin/ramet-net"),
        ("RAMET_GUEST_DIR", "/kit/guest"),
        ("NO_COLOR", "1"),
        ("PATH", "/kit/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ];
    Exec {
        argv: words
            .into_iter()
            .map(str::to_owned)
            .chain(store.arguments())
            .chain(network.arguments())
            .chain(options.names.for_rametd(names))
            .chain(dns)
            .collect(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        cwd: Some("/".to_owned()),
        ..Exec::default()
    }
}

/// Writes the output of rametd to the log, and reports its end.
fn follow(mut output: ProcessOutput, sender: Sender<Event>) {
    thread::spawn(move || {
        let how = loop {
            match output.next() {
                // A log that cannot be written is no reason to end.
                Ok(Output::Stdout(bytes) | Output::Stderr(bytes)) => {
                    let _ = std::io::stderr().write_all(&bytes);
                }
                Ok(Output::Exited(exited)) => {
                    break format!("rametd ended: {:?}, signal {:?}", exited.code, exited.signal);
                }
                Err(error) => break format!("rametd was lost: {error}"),
            }
        };
        // Nobody listens only when the keeper ends.
        let _ = sender.send(Event::Ended(how));
    });
}

fn stop(input: &mut ProcessInput, events: &Receiver<Event>) {
    const SIGTERM: i32 = 15;
    if input.signal(SIGTERM).is_ok() && events.recv_timeout(END_TIME).is_err() {
        eprintln!("keeper: rametd did not end in time");
    }
}

/// Kit and data disk.
fn prepare(plan: &Plan) -> Result<Options, Failure> {
    let dir = plan.home.host_dir();
    let made = fs::create_dir_all(&dir);
    let cannot = format!("cannot make {}", dir.display());
    made.map_err(|error| Failure::because(cannot, &error))?;
    let items = items(plan);
    let kit = dir.join("kit.ext4");
    bring_up_to_date(plan, &items, &kit)?;
    let mut options =
        Options::of_guest_dir(&plan.guest, dir.join("data.ext4"), dir.join("console.log"));
    options.kit = Some(kit);
    options.memory_mib = plan.options.host_memory.unwrap_or_else(default_memory);
    options.cpus = plan.options.host_cpus.unwrap_or(options.cpus);
    options.forward = vec![PORT];
    options.forward.extend(plan.options.names.e2b_domain.as_ref().map(|_| NAMES_PORT));
    options.outward = plan.net.is_some();
    Ok(options)
}

fn items(plan: &Plan) -> Vec<Item> {
    let mut items = vec![
        Item { path: "bin/ramet-vmm".into(), source: plan.vmm.clone() },
        Item { path: "bin/rametd".into(), source: plan.rametd.clone() },
    ];
    items.extend(plan.net.clone().map(|source| Item { path: "bin/ramet-net".into(), source }));
    let guest = |name| Item { path: Path::new("guest").join(name), source: plan.guest.join(name) };
    items.extend(KIT_FILES.map(guest));
    let manifest = plan.guest.join("manifest.json");
    if manifest.is_file() {
        items.push(Item { path: PathBuf::from("guest/manifest.json"), source: manifest });
    }
    items
}

/// Makes the kit unless it was made of the very same files.
fn bring_up_to_date(plan: &Plan, items: &[Item], kit: &Path) -> Result<(), Failure> {
    let cannot = |error: &dyn std::error::Error| {
        Failure::because("cannot put the software host's files together", error)
    };
    let content = fingerprint(items).map_err(|error| cannot(&error))?;
    let note = kit.with_extension("content");
    if kit.is_file() && fs::read_to_string(&note).is_ok_and(|kept| kept == content) {
        return Ok(());
    }
    plan.home.set_stage("putting the software host's files together");
    kit::build(items, kit).map_err(|error| cannot(&error))?;
    replace(&note, content.as_bytes()).map_err(|error| cannot(&error))
}

/// Which files, how long, and how old.
fn fingerprint(items: &[Item]) -> std::io::Result<String> {
    let mut text = String::new();
    for item in items {
        let file = fs::metadata(&item.source)?;
        text.push_str(&format!(
            "{} {} {} {}.{}\n",
            item.path.display(),
            item.source.display(),
            file.len(),
            file.mtime(),
            file.mtime_nsec()
        ));
    }
    Ok(text)
}

/// Half of this machine's memory, within bounds.
fn default_memory() -> u32 {
    let total = crate::commands::doctor::memory_mib("MemTotal").unwrap_or(*MEMORY_MIB.start());
    let half = (total / 2).clamp(*MEMORY_MIB.start(), *MEMORY_MIB.end());
    u32::try_from(half).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_changes_the_fingerprint() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a");
        fs::write(&source, "1").unwrap();
        let items = [Item { path: "bin/a".into(), source: source.clone() }];
        let before = fingerprint(&items).unwrap();
        assert_eq!(fingerprint(&items).unwrap(), before);
        fs::write(&source, "22").unwrap();
        assert_ne!(fingerprint(&items).unwrap(), before);
    }

    #[test]
    fn rametd_gets_its_token_as_a_file() {
        let mut options = start::Options::default();
        let exec = rametd(&options);
        assert!(exec.argv.windows(2).any(|pair| pair == ["--token-file", TOKEN]));
        assert!(!exec.argv.iter().any(|word| word.starts_with("--e2b")));
        options.names.e2b_domain = "a.example:1".parse().ok();
        let exec = rametd(&options);
        assert!(exec.argv.contains(&"--e2b-domain=a.example:1".to_owned()));
        assert!(exec.argv.contains(&"--e2b-listen=0.0.0.0:7879".to_owned()));
        assert!(MEMORY_MIB.contains(&u64::from(default_memory())));
    }
}
