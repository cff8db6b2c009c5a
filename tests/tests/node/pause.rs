//! Standing still, and going on.

use ramet_client::api::{Code, ExecRequest, State};

use crate::bed::{fresh, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![a_paused_sandbox_stands_still];

const COUNTER: &str = "\
import threading
count = 0
def work():
    global count
    while True: count += 1; time.sleep(0.01)
threading.Thread(target=work, daemon=True).start()";

fn a_paused_sandbox_stands_still() {
    let sandbox = fresh("paused");
    sandbox.py(COUNTER);
    assert_eq!(sandbox.pause().state, State::Paused);
    assert_eq!(sandbox.pause().state, State::Paused, "once more changes nothing");
    let command = Some("true".to_owned());
    let exec = ExecRequest { command, ..ExecRequest::default() };
    assert_eq!(refusal(sandbox.exec(&exec)), Code::WrongState);
    assert_eq!(refusal(sandbox.try_get("/etc/hostname")), Code::WrongState);
    let stream = wait(sandbox.node.client.attach(&sandbox.id, 1));
    assert_eq!(refusal(stream.map(drop)), Code::WrongState);
    assert_eq!(sandbox.resume().state, State::Running);
    assert_eq!(sandbox.resume().state, State::Running, "once more changes nothing");
    let before: u64 = sandbox.py("print(count)").parse().expect("a number");
    sandbox.py(&format!("while count <= {before}: time.sleep(0.01)"));
}
