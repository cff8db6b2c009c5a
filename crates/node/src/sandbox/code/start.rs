//! Finding the interpreter of a sandbox, and starting it where nobody has.

use std::pin::pin;
use std::time::Duration;

use ramet_proto::agent::{Channel, Dial, Exec, Reply, Request};
use tokio::time::{Instant, sleep, timeout};

use super::super::error::Error;
use super::super::{PortStream, Service};
use super::{INTERPRETER_PORT, INTERPRETER_TAG};
use crate::auth::Principal;
use crate::host::agent::{self, Frame, Listener, Session, unexpected};

const PROGRAM: [&str; 3] = ["/usr/bin/python3", "-I", "/usr/lib/ramet/interpreter/server.py"];
/// Time for it to listen. In the software host that is slow.
const START_TIME: Duration = Duration::from_secs(120);
/// Between two knocks at its port, at first and at most.
const KNOCK_MIN: Duration = Duration::from_millis(20);
const KNOCK_MAX: Duration = Duration::from_millis(500);
/// Most of its last words.
const WORDS_MAX: usize = 2000;

impl Service {
    /// A stream to the interpreter of a sandbox, which is started unless it runs.
    pub(super) async fn interpreter(
        &self,
        who: &Principal,
        key: &str,
    ) -> Result<PortStream, Error> {
        if let Some(stream) = self.knock(who, key).await? {
            return Ok(stream);
        }
        let id = self.id_of(who, key)?;
        let starting = self.registry().life(&id).interpreter.clone();
        let slow =
            |_| Error::NotInTime(format!("the interpreter does not listen after {START_TIME:?}"));
        let _alone = timeout(START_TIME, starting.lock()).await.map_err(slow)?;
        match self.knock(who, &id).await? {
            Some(stream) => Ok(stream),
            None => timeout(START_TIME, self.start_interpreter(who, &id)).await.map_err(slow)?,
        }
    }

    /// A stream to the interpreter, if it listens.
    pub(super) async fn knock(
        &self,
        who: &Principal,
        key: &str,
    ) -> Result<Option<PortStream>, Error> {
        let (session, busy) = self.session(who, key).await?;
        match session.dial(Dial::Tcp { port: INTERPRETER_PORT }).await {
            Ok(stream) => Ok(Some(PortStream { stream, busy })),
            Err(agent::Error::Failure(failure)) if failure.code == "connection_refused" => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn start_interpreter(&self, who: &Principal, id: &str) -> Result<PortStream, Error> {
        let (mut session, _busy) = self.session(who, id).await?;
        match session.ask(&Request::Exec(command())).await {
            Ok(Reply::Started { .. }) => {}
            Ok(other) => return Err(unexpected(&other).into()),
            Err(agent::Error::Failure(failure)) if failure.code == "not_found" => {
                return Err(missing(&failure.message));
            }
            Err(error) => return Err(error.into()),
        }
        let began = Instant::now();
        // Hanging up leaves it running, so the session lasts only as long as it may fail to start.
        let Session { listener, speaker: _speaker } = session;
        let mut ended = pin!(last_words(listener));
        let mut pause = KNOCK_MIN;
        loop {
            tokio::select! {
                words = &mut ended => return Err(missing(&words?)),
                () = sleep(pause) => {}
            }
            if let Some(stream) = self.knock(who, id).await? {
                tracing::debug!(id, took = ?began.elapsed(), "the interpreter listens");
                return Ok(stream);
            }
            pause = (pause * 2).min(KNOCK_MAX);
        }
    }
}

fn command() -> Exec {
    Exec {
        argv: PROGRAM.map(str::to_owned).to_vec(),
        cwd: Some("/".to_owned()),
        user: Some("root".to_owned()),
        tag: Some(INTERPRETER_TAG.to_owned()),
        ..Exec::default()
    }
}

fn missing(why: &str) -> Error {
    let text = "the sandbox's image has no code interpreter that starts; it needs python3 and \
        /usr/lib/ramet/interpreter";
    Error::Unsupported(format!("{text}: {}", why.trim()))
}

/// What the interpreter says on its standard error before it ends.
async fn last_words(mut listener: Listener) -> Result<String, Error> {
    let mut words = Vec::new();
    loop {
        match listener.next().await? {
            Frame::Bytes(Channel::Stderr, bytes) => {
                let room = WORDS_MAX.saturating_sub(words.len());
                words.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Frame::Bytes(..) => {}
            Frame::Reply(Reply::Exited(_)) => {
                return Ok(String::from_utf8_lossy(&words).into_owned());
            }
            Frame::Reply(other) => return Err(unexpected(&other).into()),
        }
    }
}
