//! Names: questions of the guest, asked upstream if the policy allows, and their answers, filtered and pinned.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Record, RecordType};
use ramet_proto::net::DOMAIN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::ingress::DNS_PORT;
use super::{Event, Port};
use crate::dns::{self, Answer, Parsed, Question};
use crate::frame;

/// Questions of one port under way.
const LOOKUPS_MAX: usize = 64;
/// How long a guest may leave a connection for questions open.
const STREAM_IDLE: Duration = Duration::from_secs(30);

/// Who asked.
#[derive(Debug)]
pub(super) enum Asker {
    /// By datagram.
    Datagram { guest: SocketAddr, gateway: IpAddr },
    /// Over TCP.
    Stream(oneshot::Sender<Vec<u8>>),
}

/// What came of asking upstream.
#[derive(Debug)]
pub(super) struct Resolved {
    question: Box<Question>,
    answer: Answer,
    asker: Asker,
}

impl Port {
    /// A message to the service's port for names.
    pub(super) fn asked(&mut self, message: &[u8], asker: Asker) {
        match dns::parse(message) {
            Parsed::Question(question) => self.question(question, asker),
            Parsed::Error(answer) => self.answer_bytes(asker, answer),
            Parsed::Noise => self.wire.stats.dropped += 1,
        }
    }

    fn question(&mut self, question: Box<Question>, asker: Asker) {
        if let Some(answer) = self.answer_inside(&question) {
            return self.answer(&question, answer, asker);
        }
        if question.name.is_empty() || !self.setup.rules.allows_lookup(&question.name) {
            let name = question.written().to_ascii();
            self.refuse_lookup(name.trim_end_matches('.'), "not_allowed");
            return self.answer(&question, Answer::only(ResponseCode::Refused), asker);
        }
        if !question.passes() {
            return self.answer(&question, Answer::only(ResponseCode::NoError), asker);
        }
        if self.lookups >= LOOKUPS_MAX {
            self.refuse_lookup(&question.name, "too_many_lookups");
            return self.answer(&question, Answer::only(ResponseCode::ServFail), asker);
        }
        self.lookups += 1;
        let (shared, report) = (self.shared.clone(), self.report.clone());
        self.helpers.spawn(async move {
            let answer = shared.upstream.lookup(&question.name, question.kind).await;
            let resolved = Resolved { question, answer, asker };
            // The port is gone if this fails.
            drop(report.send(Event::Resolved(Box::new(resolved))).await);
        });
    }

    /// Members, by name or with the domain.
    fn answer_inside(&self, question: &Question) -> Option<Answer> {
        let suffix = question.name.strip_suffix(DOMAIN);
        let below = suffix.and_then(|rest| rest.strip_suffix('.'));
        let label = below.unwrap_or(&question.name);
        let number = self.place.as_ref().and_then(|place| place.number_of(label));
        match number {
            Some(number) => {
                let (v4, v6) = frame::member_addresses(number);
                Some(question.member([v4.into(), v6.into()]))
            }
            None if below.is_some() || suffix == Some("") => {
                Some(Answer::only(ResponseCode::NXDomain))
            }
            None => None,
        }
    }

    fn refuse_lookup(&mut self, name: &str, reason: &'static str) {
        self.wire.stats.refused += 1;
        self.journal.refused("dns", name, None, reason);
    }

    /// An answer from upstream. The policy may have changed meanwhile.
    pub(super) fn resolved(&mut self, resolved: Resolved) {
        self.lookups = self.lookups.saturating_sub(1);
        let Resolved { question, mut answer, asker } = resolved;
        if !self.setup.rules.allows_lookup(&question.name) {
            self.refuse_lookup(&question.name, "not_allowed");
            return self.answer(&question, Answer::only(ResponseCode::Refused), asker);
        }
        let kind = question.kind;
        answer.records.retain(|record| {
            record.record_type() == kind || record.record_type() == RecordType::CNAME
        });
        let kept = self.shared.kept();
        let rules = &self.setup.rules;
        let shown =
            |record: &Record| dns::address(record).is_none_or(|a| rules.allows_answer(a, &kept));
        let before = answer.records.len();
        answer.records.retain(shown);
        if answer.records.len() < before {
            self.refuse_lookup(&question.name, "private_address");
        }
        for record in &answer.records {
            if let Some(address) = dns::address(record) {
                let ttl = Duration::from_secs(record.ttl().into());
                self.pins.pin(address, &question.name, ttl, self.wire.now);
            }
        }
        self.answer(&question, answer, asker);
    }

    fn answer(&mut self, question: &Question, answer: Answer, asker: Asker) {
        let udp = matches!(asker, Asker::Datagram { .. });
        if let Some(bytes) = question.write(answer, udp) {
            self.answer_bytes(asker, bytes);
        }
    }

    fn answer_bytes(&mut self, asker: Asker, bytes: Vec<u8>) {
        match asker {
            Asker::Datagram { guest, gateway } => {
                let to = (guest.ip(), guest.port());
                if let Some(message) = frame::udp((gateway, DNS_PORT), to, &bytes) {
                    self.wire.send(&message);
                }
            }
            // Who asked may have hung up.
            Asker::Stream(reply) => drop(reply.send(bytes)),
        }
    }

    /// A helper that reads questions from a connection, which has this as its outside.
    pub(super) fn serve_names(&mut self, stream: OwnedFd) {
        let report = self.report.clone();
        self.helpers.spawn(async move {
            // However it ends, the guest sees the connection closed.
            drop(serve(stream, report).await);
        });
    }
}

async fn serve(stream: OwnedFd, report: mpsc::Sender<Event>) -> std::io::Result<()> {
    let mut stream = UnixStream::from_std(stream.into())?;
    loop {
        let read = async {
            let mut message = vec![0; stream.read_u16().await?.into()];
            stream.read_exact(&mut message).await?;
            std::io::Result::Ok(message)
        };
        let message = tokio::time::timeout(STREAM_IDLE, read).await??;
        let (reply, answer) = oneshot::channel();
        if report.send(Event::Asked { message, reply }).await.is_err() {
            return Ok(());
        }
        let Ok(answer) = answer.await else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        let write =
            async { stream.write_all(&[&length.to_be_bytes()[..], &answer].concat()).await };
        tokio::time::timeout(STREAM_IDLE, write).await??;
    }
}
