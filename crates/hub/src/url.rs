//! URLs of requests and redirects.
//!
//! Only http and https are parsed. User names and passwords are refused.

use std::fmt;

/// A URL of http or https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    https: bool,
    /// In lower case.
    host: String,
    port: u16,
    /// Path and query, from the slash after the host on.
    path: String,
}

impl Url {
    /// Parses a URL; `None` if it is invalid or has characters that are not ASCII.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['\\', '"', '<', '>']) {
            return None;
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if digits(port) => (host, port.parse().ok()?),
            _ => (authority, if https { 443 } else { 80 }),
        };
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || (is_v6 && c == ':');
        let bare = if is_v6 { &host[1..host.len() - 1] } else { host };
        if bare.is_empty() || !bare.chars().all(letter) {
            return None;
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        Some(Self { https, host: host.to_ascii_lowercase(), port, path: format!("{slash}{path}") })
    }

    /// The target of a redirect from here; `None` if it is invalid, or goes from https to http.
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        let scheme = if self.https { "https" } else { "http" };
        let origin = format!("{scheme}://{}:{}", self.host, self.port);
        let whole = if location.contains("://") && !location.starts_with(['/', '?']) {
            location.to_string()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.starts_with('/') {
            format!("{origin}{location}")
        } else {
            let path = self.path.split('?').next().unwrap_or_default();
            let folder = &path[..=path.rfind('/').unwrap_or(0)];
            format!("{origin}{folder}{location}")
        };
        Self::parse(&whole).filter(|url| url.https || !self.https)
    }

    /// Whether its scheme is https.
    pub(crate) fn has_tls(&self) -> bool {
        self.https
    }

    /// Whether two URLs have the same scheme, host and port.
    pub(crate) fn same_server(&self, other: &Self) -> bool {
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port)
    }

    /// The server, for messages.
    pub(crate) fn server(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        let usual = self.port == if self.https { 443 } else { 80 };
        let port = if usual { String::new() } else { format!(":{}", self.port) };
        format!("{scheme}://{}{port}", self.host)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server(), self.path)
    }
}

/// A percent-encoded path, with slashes kept if `with_slashes`.
pub(crate) fn encoded(text: &str, with_slashes: bool) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => (byte as char).to_string(),
        b'/' if with_slashes => "/".to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_and_never_downgraded_to_http() {
        let here = Url::parse("https://Hub.example/a/b?x=1").expect("an address");
        let redirected = |location: &str| here.join(location).map(|url| url.to_string());
        assert_eq!(redirected("/c"), Some("https://hub.example/c".into()));
        assert_eq!(redirected("c?y"), Some("https://hub.example/a/c?y".into()));
        assert_eq!(redirected("//cdn.example:8443/c"), Some("https://cdn.example:8443/c".into()));
        assert_eq!(redirected("https://cdn.example/c?sig=://"), Some("https://cdn.example/c?sig=://".into()));
        assert_eq!(redirected("/c?next=http://x"), Some("https://hub.example/c?next=http://x".into()));
        for bad in
            ["http://hub.example/c", "ftp://x/y", "https://me:secret@x/y", "https://", "https://x y/", "file:///x"]
        {
            assert_eq!(redirected(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_server_is_scheme_host_and_port() {
        let url = |text| Url::parse(text).expect(text);
        let hub = url("https://hub.example/a");
        assert!(hub.same_server(&url("https://HUB.example:443/b")));
        for other in
            ["http://hub.example/a", "https://hub.example:444", "https://hub.example.evil", "https://cdn.example"]
        {
            assert!(!hub.same_server(&url(other)), "{other}");
        }
        assert_eq!(url("http://[::1]:80").to_string(), "http://[::1]/");
        assert_eq!(
            (encoded("a b/ä", true), encoded("refs/pr/1", false)),
            ("a%20b/%C3%A4".into(), "refs%2Fpr%2F1".into())
        );
    }
}
