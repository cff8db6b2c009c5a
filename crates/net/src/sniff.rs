//! The first bytes of a connection: which name do they ask for?
//!
//! TLS says it in the server name of its ClientHello, HTTP/1 in its Host. Both may come in pieces, also inside of records. Nothing is decrypted and nothing is kept.

/// Most bytes that are waited for.
pub const NEEDED_MAX: usize = 64 << 10;
/// Most headers of an HTTP request.
const HEADERS_MAX: usize = 128;

/// What the first bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Not enough to say.
    More,
    /// A ClientHello, with its server name in lower case, if it has one that is a name.
    Tls(Option<String>),
    /// An HTTP/1 request, with its host in lower case, without port, if it has one that is a name.
    Http(Option<String>),
    /// Something else.
    Other,
}

/// Listens.
#[must_use]
pub fn listen(bytes: &[u8]) -> Heard {
    let heard = match bytes {
        [] => Heard::More,
        [22] => Heard::More,
        [22, 3, ..] => tls(bytes),
        [first, ..] if first.is_ascii_alphabetic() => http(bytes),
        _ => Heard::Other,
    };
    if heard == Heard::More && bytes.len() >= NEEDED_MAX { Heard::Other } else { heard }
}

/// Joins the records of the handshake, as far as they are there.
fn tls(bytes: &[u8]) -> Heard {
    let mut handshake = Vec::new();
    let mut rest = bytes;
    loop {
        let [kind, major, _, high, low, after @ ..] = rest else { return Heard::More };
        if (*kind, *major) != (22, 3) {
            return Heard::Other;
        }
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == 0 {
            return Heard::Other;
        }
        handshake.extend_from_slice(&after[..length.min(after.len())]);
        match hello(&handshake) {
            Heard::More => {}
            heard => return heard,
        }
        match after.get(length..) {
            Some(next) => rest = next,
            None => return Heard::More,
        }
    }
}

/// A ClientHello, which is there whole or not at all.
fn hello(handshake: &[u8]) -> Heard {
    let [kind, a, b, c, rest @ ..] = handshake else {
        return if handshake.first().is_none_or(|kind| *kind == 1) {
            Heard::More
        } else {
            Heard::Other
        };
    };
    if *kind != 1 {
        return Heard::Other;
    }
    let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
    if length > NEEDED_MAX {
        return Heard::Other;
    }
    match rest.get(..length) {
        None => Heard::More,
        Some(body) => server_name(body).map_or(Heard::Other, Heard::Tls),
    }
}

/// None if it is no ClientHello; otherwise its server name, if it has exactly one that is a name.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    let mut body = Reader(body);
    body.take(2 + 32)?;
    body.counted8()?;
    body.counted16()?;
    body.counted8()?;
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Reader(body.counted16()?);
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let mut data = Reader(extensions.counted16()?);
        if kind == 0 {
            let mut list = Reader(data.counted16()?);
            let is_name = list.take(1)? == [0];
            let name = list.counted16()?;
            // A second name, or a second list, would be read differently by different servers.
            if found.is_some() || !is_name || !list.0.is_empty() || !data.0.is_empty() {
                return None;
            }
            found = Some(host(name));
        }
    }
    Some(found.flatten())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn counted8(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    fn counted16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

fn http(bytes: &[u8]) -> Heard {
    if !could_be_request(bytes) {
        return Heard::Other;
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Heard::More,
        Err(_) => return Heard::Other,
    }
    let mut hosts =
        request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let (Some(only), None) = (hosts.next(), hosts.next()) else { return Heard::Http(None) };
    let named = host_of(only.value);
    // A request for a whole URL is for the host in it.
    match (request.method, request.path.and_then(target_host)) {
        (Some("CONNECT"), _) => Heard::Http(None),
        (_, Some(in_target)) if host_of(in_target.as_bytes()) != named => Heard::Http(None),
        _ => Heard::Http(named),
    }
}

/// A method is at most so long, of capital letters, and followed by a space.
fn could_be_request(bytes: &[u8]) -> bool {
    let method =
        bytes.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    method > 0 && method <= 20 && bytes.get(method).is_none_or(|byte| *byte == b' ')
}

fn target_host(target: &str) -> Option<&str> {
    let (_, after) = target.split_once("://").filter(|_| !target.starts_with('/'))?;
    let authority = after.split(['/', '?', '#']).next().unwrap_or_default();
    Some(authority.rsplit('@').next().unwrap_or_default())
}

/// Without the port.
fn host_of(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?.trim();
    match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            host(name.as_bytes())
        }
        Some(_) => None,
        None => host(text.as_bytes()),
    }
}

fn host(bytes: &[u8]) -> Option<String> {
    crate::policy::parse_name(std::str::from_utf8(bytes).ok()?)
}

#[cfg(test)]
mod tests;
