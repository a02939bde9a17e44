//! The head of a request as its bytes come: whether it has a `Content-Length`.
//!
//! hyper takes that header away if the request has a `Transfer-Encoding`, too. A proxy in front may go by the other of
//! the two, and then sees other requests in the same bytes, so such a request is refused. Lines are followed up to the
//! end of the head. A head that a client sends before it has the answer to its previous request is not followed; hyper
//! goes by its `Transfer-Encoding` and closes the connection after the answer.

/// The header that is looked for, in lower case.
const CONTENT_LENGTH: &[u8] = b"content-length:";

/// What is known of a head so far.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The beginning of the current line, in lower case.
    line: Vec<u8>,
    has_lines: bool,
    is_over: bool,
    /// Whether it has a `Content-Length`.
    pub(super) has_content_length: bool,
}

impl Head {
    /// Reads the next bytes of the connection.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                _ if self.is_over => return,
                b'\r' => {}
                b'\n' => {
                    // An empty line ends the head, but not before its first line.
                    self.is_over = self.has_lines && self.line.is_empty();
                    self.has_lines |= !self.line.is_empty();
                    self.line.clear();
                }
                byte if self.line.len() < CONTENT_LENGTH.len() => {
                    self.line.push(byte.to_ascii_lowercase());
                    self.has_content_length |= self.line == CONTENT_LENGTH;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_length_is_found_in_the_head_alone() {
        for (text, expected) in [
            ("POST / HTTP/1.1\r\nHost: a\r\nCONTENT-Length: 5\r\n\r\n", true),
            ("\r\n\nPOST / HTTP/1.1\nContent-Length:5\n\n", true),
            ("POST / HTTP/1.1\r\nX-Content-Length: 5\r\nContent-Lengths: 5\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nHost: Content-Length: 5\r\n\r\nContent-Length: 5\r\n\r\n", false),
        ] {
            let mut whole = Head::default();
            whole.read(text.as_bytes());
            let mut by_bytes = Head::default();
            text.as_bytes().chunks(1).for_each(|byte| by_bytes.read(byte));
            assert_eq!([whole.has_content_length, by_bytes.has_content_length], [expected; 2], "{text:?}");
        }
    }
}
