//! Questions of the guest's resolver, and answers to them.
//!
//! Only plain questions are understood: one name, class IN. Which types are passed on is said by [`Question::passes`]; others, and those that carry
//! addresses or keys on the side (HTTPS, SVCB), are answered with nothing.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Longest answer over UDP to who did not say otherwise.
const SIZE_LEAST: usize = 512;
/// Longest answer over UDP.
const SIZE_MOST: usize = 4096;
/// How long an answer about a member is good.
const MEMBER_TTL: u32 = 5;

/// A question that can be answered.
#[derive(Debug, Clone)]
pub struct Question {
    id: u16,
    query: Query,
    recursion: bool,
    edns: bool,
    size: usize,
    /// In lower case, without the last dot; empty if it is no name of a host.
    pub name: String,
    /// What is asked for.
    pub kind: RecordType,
}

/// What is said to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// How it went.
    pub code: ResponseCode,
    /// What was found.
    pub records: Vec<Record>,
}

impl Answer {
    /// Nothing but a code.
    #[must_use]
    pub fn only(code: ResponseCode) -> Self {
        Self { code, records: Vec::new() }
    }
}

/// What a message is.
#[derive(Debug)]
pub enum Parsed {
    /// A question.
    Question(Box<Question>),
    /// Something to be answered with an error.
    Error(Vec<u8>),
    /// Nothing to be answered.
    Noise,
}

/// Reads a message.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    let Some(id) = bytes.first_chunk::<2>().map(|id| u16::from_be_bytes(*id)) else {
        return Parsed::Noise;
    };
    // An answer, whatever else it says, is not answered.
    if bytes.len() < 12 || bytes[2] & 0x80 != 0 {
        return Parsed::Noise;
    }
    let error = |code| {
        let message = Message::error_msg(id, OpCode::Query, code);
        message.to_vec().map_or(Parsed::Noise, Parsed::Error)
    };
    let Ok(message) = Message::from_vec(bytes) else { return error(ResponseCode::FormErr) };
    if message.op_code() != OpCode::Query {
        return error(ResponseCode::NotImp);
    }
    let [query] = message.queries() else { return error(ResponseCode::FormErr) };
    if query.query_class() != DNSClass::IN {
        return error(ResponseCode::NotImp);
    }
    let size = usize::from(message.max_payload()).clamp(SIZE_LEAST, SIZE_MOST);
    let name = crate::policy::parse_name(&query.name().to_ascii()).unwrap_or_default();
    Parsed::Question(Box::new(Question {
        id,
        query: query.clone(),
        recursion: message.recursion_desired(),
        edns: message.extensions().is_some(),
        size,
        name,
        kind: query.query_type(),
    }))
}

impl Question {
    /// Whether this type is asked upstream.
    #[must_use]
    pub fn passes(&self) -> bool {
        use RecordType::{A, AAAA, CAA, CNAME, MX, NAPTR, NS, PTR, SOA, SRV, TXT};
        [A, AAAA, CAA, CNAME, MX, NAPTR, NS, PTR, SOA, SRV, TXT].contains(&self.kind)
    }

    /// The name as it was written.
    #[must_use]
    pub fn written(&self) -> &Name {
        self.query.name()
    }

    /// An answer with addresses of a member.
    #[must_use]
    pub fn member(&self, addresses: [IpAddr; 2]) -> Answer {
        let record = |data| Record::from_rdata(self.query.name().clone(), MEMBER_TTL, data);
        let records = addresses.into_iter().filter_map(|address| match (address, self.kind) {
            (IpAddr::V4(v4), RecordType::A) => Some(record(RData::A(v4.into()))),
            (IpAddr::V6(v6), RecordType::AAAA) => Some(record(RData::AAAA(v6.into()))),
            _ => None,
        });
        Answer { code: ResponseCode::NoError, records: records.collect() }
    }

    /// The message of an answer. Over UDP one that is too long says so and is empty: the guest asks again over TCP.
    #[must_use]
    pub fn write(&self, answer: Answer, udp: bool) -> Option<Vec<u8>> {
        let mut message = Message::new();
        message.set_id(self.id).set_message_type(MessageType::Response);
        message.set_op_code(OpCode::Query).set_response_code(answer.code);
        message.set_recursion_desired(self.recursion).set_recursion_available(true);
        message.add_query(self.query.clone()).insert_answers(answer.records);
        if self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(4096);
            message.set_edns(edns);
        }
        let bytes = message.to_vec().ok()?;
        let most = if udp { self.size } else { usize::from(u16::MAX) };
        if bytes.len() <= most {
            return Some(bytes);
        }
        drop(message.take_answers());
        message.set_truncated(true);
        message.to_vec().ok()
    }
}

/// The address in a record, if there is one.
#[must_use]
pub fn address(record: &Record) -> Option<IpAddr> {
    match record.data() {
        RData::A(v4) => Some(IpAddr::V4(v4.0)),
        RData::AAAA(v6) => Some(IpAddr::V6(v6.0)),
        _ => None,
    }
}

/// Reads a message and refuses it: what fuzzing calls.
pub fn exercise(message: &[u8]) {
    if let Parsed::Question(question) = parse(message) {
        let _ = question.passes();
        let _ = question.write(Answer::only(ResponseCode::Refused), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new();
        message.set_id(7).set_recursion_desired(true);
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    fn parsed(bytes: &[u8]) -> Box<Question> {
        match parse(bytes) {
            Parsed::Question(question) => question,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn questions_are_read_and_answered() {
        let question = parsed(&question("Db.Example.ORG.", RecordType::A));
        assert_eq!(question.name, "db.example.org");
        let answer =
            question.member(["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
        let message = Message::from_vec(&question.write(answer, true).unwrap()).unwrap();
        assert_eq!(message.id(), 7);
        assert_eq!(message.answers().len(), 1);
        assert_eq!(address(&message.answers()[0]), Some("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn long_answers_are_cut_over_udp_only() {
        let question = parsed(&question("a.org.", RecordType::A));
        let record = Record::from_rdata(
            question.written().clone(),
            1,
            RData::A(std::net::Ipv4Addr::new(192, 0, 2, 1).into()),
        );
        let answer = Answer { code: ResponseCode::NoError, records: vec![record; 100] };
        let udp = Message::from_vec(&question.write(answer.clone(), true).unwrap()).unwrap();
        assert!(udp.truncated() && udp.answers().is_empty());
        let tcp = Message::from_vec(&question.write(answer, false).unwrap()).unwrap();
        assert_eq!(tcp.answers().len(), 100);
    }

    #[test]
    fn what_is_no_question_is_an_error_or_noise() {
        assert!(matches!(parse(&[]), Parsed::Noise));
        assert!(matches!(parse(&[0, 7, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Parsed::Noise));
        assert!(matches!(parse(&[0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0]), Parsed::Error(_)));
        assert!(!parsed(&question("a.org.", RecordType::HTTPS)).passes());
        assert_eq!(parsed(&question(".", RecordType::NS)).name, "");
    }

    proptest! {
        #[test]
        fn nothing_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..200), real: bool, at: prop::sample::Index, byte: u8) {
            if real {
                bytes = question("db.example.org.", RecordType::A);
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Parsed::Question(question) = parse(&bytes) {
                let _ = question.write(Answer::only(ResponseCode::Refused), true);
            }
        }
    }
}
