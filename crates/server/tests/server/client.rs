//! A small HTTP/1.1 client over plain sockets: responses with a length, chunked responses, and event streams.
//!
//! It is stricter than real clients: a missing length, a malformed chunk or a missing end of a stream is an error.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::probe::error_of;

/// How long a test waits for a byte before it fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One connection.
pub struct Client {
    reader: BufReader<TcpStream>,
    pub address: SocketAddr,
}

/// Status and headers of a response. Header names are in lower case.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    /// A header's value. Panics if the header occurs twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str());
        let first = all.next();
        assert!(all.next().is_none(), "{name} occurs twice: {self:?}");
        first
    }

    pub fn is_event_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Response {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Response {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("responses are UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON body of a response whose status must be 200.
    #[track_caller]
    pub fn success(&self) -> Value {
        assert_eq!(self.status(), 200, "{}", self.text());
        self.json()
    }

    /// The `param` and the message of OpenAI's error object, in a response that must have this status.
    #[track_caller]
    pub fn error(&self, status: u16) -> (Option<String>, String) {
        assert_eq!(self.status(), status, "{}", self.text());
        error_of(&self.json())
    }
}

impl Client {
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream), address })
    }

    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the server listens")
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Sends bytes unchanged.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Sends a request in one write. A `Host` among the headers replaces the default one.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.send_raw(&[head.as_bytes(), body].concat())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 || !line.ends_with("\r\n") {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }

    /// Waits for status and headers of a response.
    pub fn head(&mut self) -> io::Result<Head> {
        let wrong = |line: &str| io::Error::new(ErrorKind::InvalidData, line.to_string());
        let line = self.line()?;
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| wrong(&line))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, headers });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| wrong(&line))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
    }

    /// The next chunk of a chunked body; `None` after the last.
    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let wrong = |_| io::Error::new(ErrorKind::InvalidData, line.clone());
        let len = usize::from_str_radix(&line, 16).map_err(wrong)?;
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes)?;
        match self.line()?.is_empty() {
            true => Ok((len > 0).then_some(bytes)),
            false => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// The body of a response whose head was read.
    fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if head.header("transfer-encoding") == Some("chunked") {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk()? {
                body.extend(chunk);
            }
            return Ok(body);
        }
        let len = match head.header("content-length").map(str::parse) {
            Some(Ok(len)) => len,
            None if head.status == 204 => 0,
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "no length")),
        };
        let mut body = vec![0; len];
        self.reader.read_exact(&mut body)?;
        Ok(body)
    }

    /// Waits for a complete response.
    pub fn receive(&mut self) -> io::Result<Response> {
        let head = self.head()?;
        let body = self.body(&head)?;
        Ok(Response { head, body })
    }

    /// Sends a request with any method and headers, and waits for the response.
    #[track_caller]
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.send(method, path, headers, body).expect("the server takes it");
        self.receive().unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, &[], &[])
    }

    #[track_caller]
    pub fn post(&mut self, path: &str, body: &Value) -> Response {
        self.request("POST", path, &[], body.to_string().as_bytes())
    }

    /// Sends a request for a stream, whose events are read one by one.
    pub fn events(mut self, path: &str, body: &Value) -> io::Result<Events> {
        self.send("POST", path, &[], body.to_string().as_bytes())?;
        let head = self.head()?;
        if !head.is_event_stream() {
            let body = self.body(&head)?;
            return Err(io::Error::other(format!(
                "not an event stream: {} {}",
                head.status,
                String::from_utf8_lossy(&body)
            )));
        }
        Ok(Events { client: self, text: String::new(), ended: false })
    }

    /// Waits until bytes arrive or the server closes the connection; true if it was closed.
    pub fn is_closed(&mut self) -> bool {
        match self.reader.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    }
}

/// The events of a streamed response.
pub struct Events {
    client: Client,
    text: String,
    ended: bool,
}

impl Events {
    /// The next event; `None` after `[DONE]` and the end of the body, which must follow it.
    pub fn next(&mut self) -> io::Result<Option<Value>> {
        let wrong = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_string());
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_string(), rest.to_string());
                self.text = rest;
                let Some(data) = event.strip_prefix("data: ") else {
                    // Keep-alives are comments.
                    if event.starts_with(':') { continue } else { return Err(wrong(&event)) }
                };
                if data == "[DONE]" {
                    self.ended = true;
                    continue;
                }
                if self.ended {
                    return Err(wrong("an event after [DONE]"));
                }
                return serde_json::from_str(data).map(Some).map_err(|_| wrong(data));
            }
            match self.client.chunk()? {
                Some(chunk) => {
                    self.text
                        .push_str(std::str::from_utf8(&chunk).map_err(|_| wrong("a chunk that splits a character"))?);
                }
                None if self.ended && self.text.is_empty() => return Ok(None),
                None => return Err(wrong("no [DONE]")),
            }
        }
    }

    /// All remaining events.
    pub fn all(mut self) -> io::Result<Vec<Value>> {
        let mut all = Vec::new();
        while let Some(event) = self.next()? {
            all.push(event);
        }
        Ok(all)
    }
}
