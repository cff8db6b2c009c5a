//! Code in contexts, through the interpreter in the guest (`guest/interpreter`).
//!
//! ```text
//!  request ─▶ knock at port 49999 ─▶ it listens ───────────────▶ HTTP on that stream
//!                    └─▶ nobody ─▶ start it, once for a sandbox ─┘
//! ```
//!
//! The interpreter is started by the first request that needs it and then belongs to the machine: forks have it, with all
//! contexts. Code belongs to its client; who hangs up interrupts it.
//!
//! The guest is not trusted: what it answers is bounded in size and time, parsed, and passed on in the node's own words.

mod guest;
mod start;

use std::time::Duration;

use hyper::Method;
use ramet_proto::api::{
    CodeContext, CodeError, CodeEvent, ContextList, CreateContext, Interrupted, RunCode,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use self::guest::{Answer, Call};
use super::error::Error;
use super::{Service, check};
use crate::auth::Principal;
use crate::host::agent;

/// Where the interpreter listens.
pub const INTERPRETER_PORT: u16 = 49_999;
/// Most code.
const CODE_MAX: usize = 8 << 20;
/// Time of code whose caller says none.
const TIME_S: u64 = 600;
/// Most time of code.
const TIME_S_MAX: u64 = 24 * 3600;
/// Time for everything but code; a context may have to start.
const CALL_TIME: Duration = Duration::from_secs(150);
/// Silence after which the interpreter is given up: it says that it is well every five seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest id of a context.
const ID_MAX: usize = 64;

/// Code that runs. Dropped before its end, it is interrupted.
pub struct CodeStream {
    /// None when it is over.
    answer: Option<Answer>,
    deadline: Instant,
    time_s: u64,
    /// Said next.
    last: Option<CodeEvent>,
}

impl CodeStream {
    /// The next event; none after the last.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, Error> {
        if let Some(last) = self.last.take() {
            return Ok(Some(last));
        }
        let Some(answer) = &mut self.answer else { return Ok(None) };
        let patience = self.deadline.min(Instant::now() + SILENCE);
        let heard = timeout_at(patience, answer.event()).await;
        let event = match heard {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => {
                self.answer = None;
                return Err(error);
            }
            Err(_) if Instant::now() >= self.deadline => return Ok(Some(self.time_is_over())),
            Err(_) => {
                self.answer = None;
                return Err(Error::NotInTime("the interpreter does not answer".to_owned()));
            }
        };
        if matches!(event, CodeEvent::End {}) {
            self.answer = None;
        }
        Ok(Some(event))
    }

    /// Hanging up interrupts.
    fn time_is_over(&mut self) -> CodeEvent {
        self.answer = None;
        self.last = Some(CodeEvent::End {});
        CodeEvent::Error(CodeError {
            name: "TimedOut".to_owned(),
            value: format!("the code was interrupted after {} s", self.time_s),
            traceback: String::new(),
        })
    }
}

/// A variable, as the interpreter lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its value, shortened.
    pub value: String,
}

impl Service {
    /// Starts the interpreter of a sandbox unless it listens already, and waits until it does.
    pub async fn ensure_interpreter(&self, who: &Principal, key: &str) -> Result<(), Error> {
        self.interpreter(who, key).await.map(drop)
    }

    /// Runs code.
    pub async fn run_code(
        &self,
        who: &Principal,
        key: &str,
        request: RunCode,
    ) -> Result<CodeStream, Error> {
        check_code(&request)?;
        let time_s = request.timeout_s.unwrap_or(TIME_S);
        let id = self.id_of(who, key)?;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "code", &target, async move {
            let stream = service.interpreter(&principal, &id).await?;
            let said = ["code".to_owned(), request.code.clone()];
            service.before_exec(&principal, &id, &said).await?;
            let body = json!({
                "code": request.code,
                "context_id": request.context,
                "language": request.language,
                "env_vars": request.env,
            });
            let call = Call { method: Method::POST, path: "/execute".to_owned(), body: Some(body) };
            let answer = service.ask(stream, call, CALL_TIME).await?;
            let deadline = Instant::now() + Duration::from_secs(time_s);
            Ok(CodeStream { answer: Some(answer), deadline, time_s, last: None })
        })
        .await
    }

    /// All contexts; none if the interpreter was never needed.
    pub async fn contexts(&self, who: &Principal, key: &str) -> Result<ContextList, Error> {
        let contexts = match self.knock(who, key).await? {
            Some(stream) => {
                let call = Call::get("/contexts".to_owned());
                self.ask(stream, call, CALL_TIME).await?.json().await?
            }
            None => Vec::new(),
        };
        Ok(ContextList { contexts })
    }

    /// Makes a context.
    pub async fn create_context(
        &self,
        who: &Principal,
        key: &str,
        request: CreateContext,
    ) -> Result<CodeContext, Error> {
        request.cwd.as_deref().map_or(Ok(()), |cwd| check::path("cwd", cwd))?;
        let body = json!({ "language": request.language, "cwd": request.cwd });
        let call = Call { method: Method::POST, path: "/contexts".to_owned(), body: Some(body) };
        self.small_call(who, key, "context_create", call).await
    }

    /// Ends a context.
    pub async fn delete_context(
        &self,
        who: &Principal,
        key: &str,
        context: &str,
    ) -> Result<(), Error> {
        let path = of_context(context, "")?;
        let call = Call { method: Method::DELETE, path, body: None };
        let _: Value = self.small_call(who, key, "context_delete", call).await?;
        Ok(())
    }

    /// Gives a context a new process.
    pub async fn restart_context(
        &self,
        who: &Principal,
        key: &str,
        context: &str,
    ) -> Result<CodeContext, Error> {
        let path = of_context(context, "/restart")?;
        let call = Call { method: Method::POST, path, body: None };
        self.small_call(who, key, "context_restart", call).await
    }

    /// Interrupts what runs in a context.
    pub async fn interrupt_context(
        &self,
        who: &Principal,
        key: &str,
        context: &str,
    ) -> Result<Interrupted, Error> {
        let path = of_context(context, "/interrupt")?;
        let call = Call { method: Method::POST, path, body: None };
        self.small_call(who, key, "context_interrupt", call).await
    }

    /// Variables of a Python context of a sandbox that runs; the interpreter is not started for it.
    pub(super) async fn variables(
        &self,
        who: &Principal,
        key: &str,
        context: &str,
    ) -> Result<Vec<Variable>, Error> {
        #[derive(Deserialize)]
        struct Listed {
            variables: Vec<Variable>,
        }
        let Some(stream) = self.knock(who, key).await? else { return Ok(Vec::new()) };
        let call = Call::get(of_context(context, "/variables")?);
        let listed: Listed = self.ask(stream, call, CALL_TIME).await?.json().await?;
        Ok(listed.variables)
    }

    /// A call with a short answer, noted.
    async fn small_call<T: DeserializeOwned + Send + 'static>(
        &self,
        who: &Principal,
        key: &str,
        kind: &'static str,
        call: Call,
    ) -> Result<T, Error> {
        let id = self.id_of(who, key)?;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, kind, &target, async move {
            let stream = service.interpreter(&principal, &id).await?;
            service.ask(stream, call, CALL_TIME).await?.json().await
        })
        .await
    }
}

fn check_code(request: &RunCode) -> Result<(), Error> {
    check::env(&request.env)?;
    if request.code.len() > CODE_MAX {
        return Err(Error::Bad(format!("code: at most {CODE_MAX} bytes")));
    }
    if request.context.is_some() && request.language.is_some() {
        return Err(Error::Bad("context, language: only one of them".to_owned()));
    }
    request.context.as_deref().map_or(Ok(()), check_id)?;
    match request.timeout_s {
        Some(time) if !(1..=TIME_S_MAX).contains(&time) => {
            Err(Error::Bad(format!("timeout_s: 1 to {TIME_S_MAX}, not {time}")))
        }
        _ => Ok(()),
    }
}

/// An id goes into a path as it is.
fn check_id(id: &str) -> Result<(), Error> {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if id.is_empty() || id.len() > ID_MAX || !id.chars().all(letter) {
        return Err(Error::NotFound { what: "context", key: id.chars().take(ID_MAX).collect() });
    }
    Ok(())
}

fn of_context(id: &str, what: &str) -> Result<String, Error> {
    check_id(id)?;
    Ok(format!("/contexts/{id}{what}"))
}

/// The interpreter broke its protocol.
fn broken(text: impl Into<String>) -> Error {
    agent::Error::Protocol(text.into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_checked() {
        let request = |context: Option<&str>, language: Option<&str>, timeout_s| RunCode {
            context: context.map(str::to_owned),
            language: language.map(str::to_owned),
            timeout_s,
            ..RunCode::default()
        };
        check_code(&request(Some("a-1_B"), None, Some(1))).unwrap();
        for bad in [
            request(Some("a"), Some("python"), None),
            request(Some("../health"), None, None),
            request(Some(""), None, None),
            request(None, None, Some(0)),
            request(None, None, Some(TIME_S_MAX + 1)),
            RunCode { code: "x".repeat(CODE_MAX + 1), ..RunCode::default() },
        ] {
            check_code(&bad).unwrap_err();
        }
    }
}
