//! A local hub for tests: the same URLs as the real one, and faults on demand.
//!
//! There are two listeners, since large files are redirected to another host (here: another port). Every request is
//! recorded. A fault is set for a part of a path and a number of times. There is no TLS, and one request for each
//! connection.

#![allow(dead_code, reason = "two test programs use it, neither all of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// Files from this size on are "large": they have a sha256 and are at the other host.
pub const LARGE: usize = 10_000;

/// A fault of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The connection ends after this many bytes of the body.
    BreakAfter(usize),
    /// The connection stays open and idle after this many bytes of the body.
    StallAfter(usize),
    /// One byte is changed.
    Flip,
    /// This status, and nothing else.
    Status(u16),
    /// `Content-Length` is larger than the body by this many bytes.
    LongerBy(i64),
    /// A chunked body that never ends.
    Endless,
    /// Ranges are ignored.
    NoRange,
    /// Another range than the one that was asked for.
    WrongRange,
    /// A chunk of a thousand bytes every this many milliseconds.
    Slow(u64),
    /// A redirect to there.
    Redirect(&'static str),
}

/// A repository.
#[derive(Clone, Default)]
pub struct Repository {
    /// By path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The token that may read it; `None` for everybody.
    pub token: Option<String>,
    /// A replacement of the listing.
    pub listing: Option<String>,
    /// Whether listings lack sizes and checksums.
    pub terse: bool,
    /// The number of its only commit.
    pub commit: String,
}

/// A request that was received.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether it came to the other host.
    pub elsewhere: bool,
    /// GET or HEAD.
    pub method: String,
    /// The path with the query.
    pub path: String,
    /// By name, in lower case.
    pub headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    repositories: Mutex<BTreeMap<String, Repository>>,
    faults: Mutex<Vec<(String, Fault, usize)>>,
    seen: Mutex<Vec<Seen>>,
}

/// A running hub.
pub struct Server {
    state: Arc<State>,
    hub: SocketAddr,
}

impl Server {
    /// Starts one.
    pub fn start() -> Self {
        let state = Arc::new(State::default());
        let bind = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (hub, elsewhere) = (bind(), bind());
        let [hub_at, elsewhere_at] = [&hub, &elsewhere].map(|at| at.local_addr().expect("it has an address"));
        for (listener, is_elsewhere) in [(hub, false), (elsewhere, true)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    let state = state.clone();
                    // Errors of a client that disconnects are ignored.
                    std::thread::spawn(move || drop(state.answer(connection, is_elsewhere, elsewhere_at)));
                }
            });
        }
        Self { state, hub: hub_at }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Offers a repository with these files.
    pub fn offer(&self, name: &str, files: &[(&str, Vec<u8>)]) {
        let files = files.iter().map(|(path, bytes)| ((*path).to_string(), bytes.clone())).collect();
        self.change(name, |repository| repository.files = files);
    }

    /// Offers the files of a folder.
    pub fn offer_folder(&self, name: &str, folder: &Path) {
        let entries = std::fs::read_dir(folder).expect("the folder is there").flatten();
        let file = |entry: std::fs::DirEntry| {
            (entry.file_name().into_string().expect("a name"), std::fs::read(entry.path()).expect("a file"))
        };
        let files = entries.map(file).collect();
        self.change(name, |repository| repository.files = files);
    }

    /// Changes a repository, or creates it.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Repository)) {
        let mut all = self.state.repositories.lock().expect("nobody panics");
        let repository = all.entry(name.to_string()).or_default();
        if repository.commit.is_empty() {
            repository.commit = hex(&Sha1::digest(name.as_bytes()));
        }
        change(repository);
    }

    /// Sets a fault for the next `times` requests whose path contains `part`.
    pub fn fault(&self, part: &str, fault: Fault, times: usize) {
        self.state.faults.lock().expect("nobody panics").push((part.to_string(), fault, times));
    }

    /// The requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.seen.lock().expect("nobody panics"))
    }
}

/// The checksum and name of a file's content.
pub fn etag(bytes: &[u8]) -> String {
    match bytes.len() >= LARGE {
        true => hex(&Sha256::digest(bytes)),
        false => hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl State {
    fn answer(&self, connection: TcpStream, elsewhere: bool, other: SocketAddr) -> std::io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let [method, path] = [words.next(), words.next()].map(|word| word.unwrap_or_default().to_string());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_string());
        }
        let seen = Seen { elsewhere, method, path, headers };
        self.seen.lock().expect("nobody panics").push(seen.clone());
        let fault = {
            let mut faults = self.faults.lock().expect("nobody panics");
            let found = faults.iter_mut().find(|(part, _, times)| *times > 0 && seen.path.contains(part.as_str()));
            found.map(|(_, fault, times)| {
                *times -= 1;
                *fault
            })
        };
        let mut out = Answer { connection, fault, head: seen.method == "HEAD" };
        match fault {
            Some(Fault::Status(status)) => return out.send(status, &[], b""),
            Some(Fault::Redirect(to)) => return out.send(302, &[("Location", to)], b""),
            _ => {}
        }
        self.route(&seen, other, &mut out)
    }

    fn route(&self, seen: &Seen, other: SocketAddr, out: &mut Answer) -> std::io::Result<()> {
        let repositories = self.repositories.lock().expect("nobody panics").clone();
        let path = seen.path.split('?').next().unwrap_or_default().replace("%2F", "/");
        if seen.elsewhere {
            let all = repositories.values().flat_map(|repository| repository.files.values());
            let Some(bytes) =
                path.strip_prefix("/large/").and_then(|name| all.clone().find(|bytes| etag(bytes) == name))
            else {
                return out.send(404, &[], b"");
            };
            return out.file(seen, &[("ETag", "\"0123456789abcdef0123456789abcdef\"")], bytes);
        }
        let (of_api, rest) = match path.strip_prefix("/api/models/") {
            Some(rest) => (true, rest.split_once("/revision/")),
            None => (false, path.trim_start_matches('/').split_once("/resolve/")),
        };
        let Some((name, rest)) = rest else { return out.send(404, &[], b"") };
        let Some(repository) = repositories.get(name) else {
            // The real hub does not reveal which repositories exist.
            return out.send(
                401,
                &[("X-Error-Code", "RepoNotFound")],
                b"{\"error\":\"Invalid username or password.\"}",
            );
        };
        let sent = seen.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let may_read = repository.token.is_none() || repository.token.as_deref() == sent;
        let (revision, file) = if of_api { (rest, "") } else { rest.split_once('/').unwrap_or((rest, "")) };
        if ![repository.commit.as_str(), "main", "refs/pr/1"].contains(&revision) {
            return out.send(404, &[("X-Error-Code", "RevisionNotFound")], b"");
        }
        if of_api {
            // Other listings have pages. This one is whole, and another page, anywhere, is not asked for.
            let next = format!("<http://{other}/next?cursor=x>; rel=\"next\"");
            return out.send(200, &[("Link", next.as_str())], repository.listing(name).as_bytes());
        }
        if !may_read {
            return out.send(403, &[("X-Error-Code", "GatedRepo")], b"{\"error\":\"Access is restricted.\"}");
        }
        let Some(bytes) = repository.files.get(file) else {
            return out.send(404, &[("X-Error-Code", "EntryNotFound")], b"");
        };
        let (etag, size) = (etag(bytes), bytes.len().to_string());
        let commit = ("X-Repo-Commit", repository.commit.as_str());
        if bytes.len() >= LARGE {
            let to = format!("http://{other}/large/{etag}?signature=%2B/x");
            let linked = format!("\"{etag}\"");
            let headers = [("Location", to.as_str()), ("X-Linked-Etag", &linked), ("X-Linked-Size", &size), commit];
            return out.send(302, &headers, b"moved");
        }
        out.file(seen, &[("ETag", &format!("W/\"{etag}\"")), commit], bytes)
    }
}

impl Repository {
    fn listing(&self, name: &str) -> String {
        if let Some(listing) = &self.listing {
            return listing.clone();
        }
        let file = |(path, bytes): (&String, &Vec<u8>)| {
            let (etag, size) = (etag(bytes), bytes.len());
            match (self.terse, size >= LARGE) {
                (true, _) => format!("{{\"rfilename\":{path:?}}}"),
                (false, false) => format!("{{\"rfilename\":{path:?},\"size\":{size},\"blobId\":\"{etag}\"}}"),
                (false, true) => {
                    let pointer = "0".repeat(40);
                    let lfs = format!("{{\"sha256\":\"{etag}\",\"size\":{size},\"pointerSize\":134}}");
                    format!("{{\"rfilename\":{path:?},\"size\":{size},\"blobId\":\"{pointer}\",\"lfs\":{lfs}}}")
                }
            }
        };
        let files: Vec<String> = self.files.iter().map(file).collect();
        format!(
            "{{\"id\":\"{name}\",\"sha\":\"{}\",\"siblings\":[{}],\"private\":false,\"tags\":[]}}",
            self.commit,
            files.join(",")
        )
    }
}

struct Answer {
    connection: TcpStream,
    fault: Option<Fault>,
    head: bool,
}

impl Answer {
    /// A file, or the part of it that was asked for.
    fn file(&mut self, seen: &Seen, headers: &[(&str, &str)], bytes: &[u8]) -> std::io::Result<()> {
        let range = seen.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let from: Option<usize> = range.and_then(|from| from.parse().ok());
        match from.filter(|_| self.fault != Some(Fault::NoRange)) {
            None => self.send(200, headers, bytes),
            Some(from) if from >= bytes.len() => self.send(416, &[], b""),
            Some(from) => {
                let first = if self.fault == Some(Fault::WrongRange) { 0 } else { from };
                let range = format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len());
                self.send(206, &[headers, &[("Content-Range", &range)]].concat(), &bytes[first..])
            }
        }
    }

    fn send(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n");
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        let is_endless = self.fault == Some(Fault::Endless);
        let more = if let Some(Fault::LongerBy(more)) = self.fault { more } else { 0 };
        match is_endless {
            true => head += "Transfer-Encoding: chunked\r\n\r\n",
            false => head += &format!("Content-Length: {}\r\n\r\n", body.len() as i64 + more),
        }
        self.connection.write_all(head.as_bytes())?;
        if self.head {
            return self.end();
        }
        match self.fault {
            Some(Fault::BreakAfter(len)) => self.connection.write_all(&body[..len.min(body.len())])?,
            Some(Fault::StallAfter(len)) => {
                self.connection.write_all(&body[..len.min(body.len())])?;
                std::thread::sleep(Duration::from_secs(30));
            }
            Some(Fault::Flip) => {
                let mut other = body.to_vec();
                other.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                self.connection.write_all(&other)?;
            }
            Some(Fault::Slow(ms)) => {
                for piece in body.chunks(1000) {
                    self.connection.write_all(piece)?;
                    std::thread::sleep(Duration::from_millis(ms));
                }
            }
            Some(Fault::Endless) => loop {
                self.connection.write_all(b"10000\r\n")?;
                self.connection.write_all(&vec![b' '; 0x10000])?;
                self.connection.write_all(b"\r\n")?;
            },
            _ => self.connection.write_all(body)?,
        }
        self.end()
    }

    /// Closes the connection so that everything sent arrives.
    fn end(&mut self) -> std::io::Result<()> {
        self.connection.shutdown(Shutdown::Write)?;
        self.connection.set_read_timeout(Some(Duration::from_millis(200)))?;
        let _ = self.connection.read(&mut [0; 1024]);
        Ok(())
    }
}
