//! Forms with files, taken apart as they come (RFC 7578).
//!
//! What is kept at a time is one piece of the body and the head of one part, which is bounded.

use super::Fault;

/// Longest head of a part, and most that comes before the first.
const HEAD_MAX: usize = 16 << 10;
/// Longest boundary (RFC 2046).
const BOUNDARY_MAX: usize = 70;

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A part begins.
    Part {
        /// Its name.
        name: String,
        /// The name of its file, if it is one.
        file: Option<String>,
    },
    /// Bytes of the part.
    Data(Vec<u8>),
    /// The part is whole.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    Boundary,
    Head,
    Data,
    Over,
}

/// A form, as far as it came.
#[derive(Debug)]
pub struct Form {
    mark: Vec<u8>,
    buffer: Vec<u8>,
    state: State,
}

impl Form {
    /// With the boundary that the content type names.
    pub fn new(content_type: &str) -> Result<Self, Fault> {
        let boundary = parameters(content_type).into_iter().find(|(name, _)| name == "boundary");
        let boundary = boundary.map(|(_, value)| value).unwrap_or_default();
        if boundary.is_empty() || boundary.len() > BOUNDARY_MAX {
            return Err(Fault::bad("multipart: the content type names no boundary"));
        }
        // The first boundary may begin the body.
        let (mark, buffer) = (format!("\r\n--{boundary}").into_bytes(), b"\r\n".to_vec());
        Ok(Self { mark, buffer, state: State::Before })
    }

    /// The next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Everything that was to come has come.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The next piece, if enough has come for one.
    pub fn next(&mut self) -> Result<Option<Piece>, Fault> {
        loop {
            match self.state {
                State::Before => match find(&self.buffer, &self.mark) {
                    Some(at) => {
                        self.buffer.drain(..at + self.mark.len());
                        self.state = State::Boundary;
                    }
                    None if self.buffer.len() > HEAD_MAX => {
                        return Err(Fault::bad(
                            "multipart: the body does not begin with its boundary",
                        ));
                    }
                    None => return Ok(None),
                },
                State::Boundary => match self.buffer.first_chunk() {
                    None => return Ok(None),
                    Some(b"--") => self.state = State::Over,
                    Some(b"\r\n") => self.state = State::Head,
                    Some([b' ' | b'\t', _]) => drop(self.buffer.remove(0)),
                    Some(_) => return Err(Fault::bad("multipart: a boundary goes on")),
                },
                State::Head => return self.head(),
                State::Data => return Ok(self.data()),
                State::Over => {
                    self.buffer.clear();
                    return Ok(None);
                }
            }
        }
    }

    fn head(&mut self) -> Result<Option<Piece>, Fault> {
        // It begins with the end of the boundary's line, so an empty one is found too.
        let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
            return match self.buffer.len() > HEAD_MAX {
                true => Err(Fault::bad(format!("multipart: a head of more than {HEAD_MAX} bytes"))),
                false => Ok(None),
            };
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head =
            String::from_utf8(head).map_err(|_| Fault::bad("multipart: a head is no UTF-8"))?;
        self.state = State::Data;
        let (mut name, mut file) = (String::new(), None);
        for line in head.split("\r\n") {
            let Some((key, value)) = line.split_once(':') else { continue };
            if key.trim().eq_ignore_ascii_case("content-disposition") {
                for (key, value) in parameters(value) {
                    match key.as_str() {
                        "name" => name = value,
                        "filename" => file = file.or(Some(value)),
                        "filename*" => file = extended(&value).or(file),
                        _ => {}
                    }
                }
            }
        }
        Ok(Some(Piece::Part { name, file }))
    }

    fn data(&mut self) -> Option<Piece> {
        match find(&self.buffer, &self.mark) {
            Some(0) => {
                self.buffer.drain(..self.mark.len());
                self.state = State::Boundary;
                Some(Piece::End)
            }
            Some(at) => Some(Piece::Data(self.buffer.drain(..at).collect())),
            None => {
                let sure = self.buffer.len().saturating_sub(self.mark.len() - 1);
                (sure > 0).then(|| Piece::Data(self.buffer.drain(..sure).collect()))
            }
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = wanted.first()?;
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| byte == first) {
        if text[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// Parameters of a header, after its value; names in lower case.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.split_once(';').map_or("", |(_, rest)| rest);
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', '\t', ';']).to_ascii_lowercase();
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.push((name, value));
        rest = after;
    }
    found
}

/// A quoted string, and what follows it.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' if letters.peek().is_some_and(|(_, next)| matches!(next, '"' | '\\')) => {
                value.extend(letters.next().map(|(_, next)| next));
            }
            letter => value.push(letter),
        }
    }
    (value, "")
}

/// A value with its character set (RFC 8187).
fn extended(text: &str) -> Option<String> {
    let (set, rest) = text.split_once('\'')?;
    let (_, value) = rest.split_once('\'')?;
    if !set.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                rest = after;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"b0un--dary\"";

    fn written(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (file, content) in parts {
            body.extend(b"--b0un--dary\r\nContent-Type: text/plain\r\n");
            let line =
                format!("Content-Disposition: form-data; name=\"file\"; filename=\"{file}\"");
            body.extend(line.as_bytes());
            body.extend(b"\r\n\r\n");
            body.extend(*content);
            body.extend(b"\r\n");
        }
        body.extend(b"--b0un--dary--\r\nepilogue");
        body
    }

    fn read(body: &[u8], step: usize) -> Result<Vec<(String, Vec<u8>)>, Fault> {
        let mut form = Form::new(TYPE)?;
        let (mut found, mut whole) = (Vec::new(), 0);
        for chunk in body.chunks(step) {
            form.push(chunk);
            while let Some(piece) = form.next()? {
                match piece {
                    Piece::Part { name, file } => {
                        assert_eq!(name, "file");
                        found.push((file.unwrap(), Vec::new()));
                    }
                    Piece::Data(bytes) => found.last_mut().unwrap().1.extend(bytes),
                    Piece::End => whole += 1,
                }
            }
        }
        assert!(form.is_over() && whole == found.len());
        Ok(found)
    }

    proptest! {
        #[test]
        fn parts_are_the_same_however_they_are_split(
            contents in prop::collection::vec(prop::collection::vec(prop::sample::select(b"\r\n-b0un--daryx".to_vec()), 0..60), 0..4),
            step in 1_usize..40,
        ) {
            prop_assume!(contents.iter().all(|one| find(one, b"\r\n--b0un--dary").is_none()));
            let parts: Vec<(&str, &[u8])> = contents.iter().map(|one| ("f", &one[..])).collect();
            let found = read(&written(&parts), step).unwrap();
            prop_assert_eq!(found.into_iter().map(|(_, content)| content).collect::<Vec<_>>(), contents);
        }
    }

    #[test]
    fn names_of_files_are_read_as_clients_write_them() {
        let found =
            read(&written(&[("/a b/\u{fc}.txt", b"1"), (r#"q\"uo\\te\d"#, b"")]), 7).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["/a b/\u{fc}.txt", r#"q"uo\te\d"#]);
        let pairs = parameters("form-data; name=file; filename*=UTF-8''a%2Fb%20c");
        assert_eq!(extended(&pairs[1].1).as_deref(), Some("a/b c"));
        assert_eq!(extended("latin1''x"), None);
    }

    #[test]
    fn what_is_no_form_is_refused() {
        assert!(Form::new("multipart/form-data").is_err());
        let mut form = Form::new(TYPE).unwrap();
        form.push(&vec![b'x'; HEAD_MAX + 1]);
        assert!(form.next().is_err());
        let mut form = Form::new(TYPE).unwrap();
        form.push(b"--b0un--darymore");
        assert!(form.next().is_err());
        let mut form = Form::new(TYPE).unwrap();
        form.push(b"--b0un--dary\r\nX: ");
        form.push(&vec![b'x'; HEAD_MAX]);
        assert!(form.next().is_err());
    }
}
