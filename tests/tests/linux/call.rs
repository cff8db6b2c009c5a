//! The guest's own call: `ramet-agent fork`.

use ramet_engine::control::Events;
use ramet_proto::agent::Exec;
use ramet_proto::control::{Child, Code, Event, Request};
use ramet_tests::linux;

use crate::bed::{Guest, guest, patience, shell};

/// Has a process in the guest call for three children, and does not wait for it.
fn call(guest: &Guest) {
    let exec: Exec = shell(
        "/run/ramet/ramet-agent fork 3 > /srv/index 2> /srv/error; echo $? > /srv/code.new; \
         mv /srv/code.new /srv/code",
    );
    drop(guest.agent().exec(&exec).unwrap());
}

/// Exit code, output and errors of the call.
fn came_back(guest: &Guest) -> (String, String, String) {
    guest.py_until("os.path.exists('/srv/code')");
    let told = |file: &str| guest.py(&format!("print(open('/srv/{file}').read().strip())"));
    (told("code"), told("index"), told("error"))
}

fn await_call(events: &mut Events) -> (u64, u32) {
    match events.next(patience()).unwrap() {
        Event::GuestFork { call, count } => (call, count),
        other => panic!("{other:?}"),
    }
}

pub fn everyone_learns_who_it_is() {
    let source = guest("caller");
    let mut events = source.events().unwrap();
    call(&source);
    let (number, count) = await_call(&mut events);
    assert_eq!(count, 3);
    let names = ["called-1", "called-2", "called-3"];
    let children = names.map(|name| Child { identity: Some(linux::identity(name)) });
    let offspring = source.fork_for(children.to_vec(), Some(number)).unwrap();
    let machines = offspring.all().unwrap().into_iter().map(Guest);
    for (index, machine) in (0..).zip([source].into_iter().chain(machines)) {
        let (code, told, error) = came_back(&machine);
        assert_eq!((code.as_str(), told, error.as_str()), ("0", index.to_string(), ""));
    }
}

pub fn a_refusal_is_told() {
    let source = guest("refused");
    let mut events = source.events().unwrap();
    call(&source);
    let (number, _) = await_call(&mut events);
    // A number that nobody called is refused, and the call waits on.
    let children = vec![Child { identity: Some(linux::identity("nobody")) }];
    let wrong = source.fork_for(children, Some(number + 7)).unwrap_err();
    assert_eq!(wrong.code(), Some(Code::BadValue));
    let message = "not on a Sunday".to_owned();
    source.call(Request::RefuseFork { call: number, message }).unwrap();
    let (code, index, error) = came_back(&source);
    assert_eq!((code.as_str(), index.as_str()), ("1", ""));
    assert!(error.contains("not on a Sunday"), "{error}");
}

pub fn nobody_listens() {
    let source = guest("alone");
    call(&source);
    let (code, _, error) = came_back(&source);
    assert_eq!(code, "1");
    assert!(error.contains("nobody"), "{error}");
}
