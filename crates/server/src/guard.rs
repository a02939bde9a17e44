//! Access control: API keys, host names, and origins of web pages.
//!
//! Any page that a user opens in a browser can reach a server on the user's machine: by requests to `localhost`, and by
//! host names that resolve to it (DNS rebinding). So a browser's request is answered only if its origin is the server's
//! own page or an allowed one. On the loopback device its host must be a name of that device, too. Programs send
//! neither `Origin` nor `Sec-Fetch-Site` and are not affected.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Request, Version, header};
use subtle::{Choice, ConstantTimeEq};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{ApiError, shown};
use crate::settings::ServerSettings;

/// A request's API key as a number, which separates the cached texts of different keys; 0 if none is required. All keys
/// are compared, each in constant time. As with llama.cpp the key may also be in `X-Api-Key`.
pub(crate) fn key(settings: &ServerSettings, headers: &HeaderMap) -> Result<u64, ApiError> {
    if settings.api_keys.is_empty() {
        return Ok(0);
    }
    let found = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    // The scheme is case-insensitive.
    let is_bearer = found.len() > 7 && found[..7].eq_ignore_ascii_case(b"bearer ");
    let found = match headers.get("x-api-key") {
        _ if is_bearer => found[7..].trim_ascii(),
        Some(key) => key.as_bytes().trim_ascii(),
        None => &[],
    };
    let same = |key: &String| key.as_bytes().ct_eq(found);
    let any = settings.api_keys.iter().fold(Choice::from(0), |any, key| any | same(key));
    if bool::from(any) { Ok(xxh3_64(found)) } else { Err(ApiError::unauthorized()) }
}

/// Refuses requests that a proxy may interpret differently: those with repeated headers, with two lengths, or with a
/// host that is no name; and unknown host names, if the server listens on the loopback device or has a list of names.
pub(crate) fn check_host<B>(
    settings: &ServerSettings,
    address: SocketAddr,
    request: &Request<B>,
) -> Result<(), ApiError> {
    let headers = request.headers();
    for name in ["Host", "Origin", "Authorization"] {
        if headers.get_all(name).iter().nth(1).is_some() {
            return Err(ApiError::bad(format!("{name}: expected it once, found it several times")));
        }
    }
    if headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH) {
        return Err(ApiError::bad("Content-Length: expected none beside Transfer-Encoding, found one"));
    }
    // A request to a proxy has a host in its first line, too; both must be known.
    let in_line = request.uri().authority().map(Authority::as_str);
    let in_header = headers.get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    let given = in_line.map(Cow::from).into_iter().chain(in_header);
    let mut names = Vec::new();
    for host in given {
        let expected = "expected a name or an address, and a port up to 65535 or none, found";
        names.push(name_of(&host).ok_or_else(|| ApiError::bad(format!("Host: {expected} {}", shown(&host))))?);
    }
    if !settings.host.is_loopback() && settings.host_names.is_empty() {
        return Ok(());
    }
    if names.is_empty() && request.version() == Version::HTTP_10 {
        // All browsers send the host, so this request is not from a web page.
        return Ok(());
    } else if names.is_empty() {
        names.push(String::new());
    }
    let is_unknown = |name: &String| {
        let is_loopback = name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_own = name.parse().is_ok_and(|found: IpAddr| found == address.ip());
        !(is_loopback || is_own || settings.host_names.iter().any(|own| own.eq_ignore_ascii_case(name)))
    };
    let Some(name) = names.iter().find(|name| is_unknown(name)) else { return Ok(()) };
    Err(ApiError::forbidden(format!("Host: expected localhost or another name of this server, found {}", shown(name))))
}

/// The host name in a `Host` header, in lower case and without the port; `None` if there is anything else in it.
fn name_of(host: &str) -> Option<String> {
    let host = host.trim();
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let (name, port) = match host.strip_prefix('[') {
        // Addresses with colons are in brackets, and may have the name of an interface after a percent sign.
        Some(address) => {
            let (address, port) = address.split_once(']')?;
            (Some(address).filter(|address| address.chars().all(|c| is_letter(c) || ":%".contains(c)))?, port)
        }
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            (Some(name).filter(|name| name.chars().all(is_letter))?, port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let port = if port.is_empty() { "" } else { port.strip_prefix(':')? };
    // A colon without a port is allowed.
    (port.is_empty() || is_port(port)).then(|| name.trim_end_matches('.').to_ascii_lowercase())
}

/// Refuses what a page of another origin lets a browser ask for without an `Origin`: pictures, frames, links. That page
/// cannot read the answer, but the request itself may load a model. The server's own page may be opened from anywhere.
pub(crate) fn check_site<B>(settings: &ServerSettings, request: &Request<B>) -> Result<(), ApiError> {
    let headers = request.headers();
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes).unwrap_or_default();
    let is_of_other_page = matches!(site, b"cross-site" | b"same-site") && !headers.contains_key(header::ORIGIN);
    if !is_of_other_page || request.uri().path() == "/" || settings.cors_origins.iter().any(|allowed| allowed == "*") {
        return Ok(());
    }
    let expected = "expected this server's own page";
    Err(ApiError::forbidden(format!("Sec-Fetch-Site: {expected}, found {}", String::from_utf8_lossy(site))))
}

/// The origin that may read the answer, if the request comes from another server's page.
///
/// # Errors
/// The request comes from a page whose origin is not allowed.
pub(crate) fn origin(settings: &ServerSettings, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
    let found = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_own = found.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host));
    if is_own {
        return Ok(None);
    }
    if settings.cors_origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(found)) {
        return Ok(Some(origin.clone()));
    }
    Err(ApiError::forbidden(format!("Origin: expected this server's own page, found {}", shown(found))))
}

/// Adds the headers that allow a page of this origin to read the answer.
pub(crate) fn allow_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    // OpenAI's client libraries send headers of their own.
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, Authorization"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_key_is_required_if_the_server_has_any() {
        let mut settings = ServerSettings::default();
        assert_eq!(key(&settings, &HeaderMap::new()), Ok(0));
        settings.api_keys = vec!["first".into(), "second".into()];
        let with = |value| key(&settings, &headers(&[(header::AUTHORIZATION, value)]));
        let [first, second] = ["Bearer first", "bearer second"].map(|value| with(value).expect("a key"));
        assert_ne!(first, second);
        for wrong in ["Bearer firs", "Bearer firstx", "first", "Basic first", "Bearer ", ""] {
            assert_eq!(with(wrong), Err(ApiError::unauthorized()), "{wrong}");
        }
        assert!(key(&settings, &HeaderMap::new()).is_err());
        let named = header::HeaderName::from_static("x-api-key");
        assert_eq!(key(&settings, &headers(&[(named.clone(), "first")])), Ok(first));
        assert_eq!(
            key(&settings, &headers(&[(header::AUTHORIZATION, "Basic x"), (named.clone(), "first")])),
            Ok(first)
        );
        assert!(key(&settings, &headers(&[(header::AUTHORIZATION, "Bearer x"), (named, "first")])).is_err());
    }

    #[test]
    fn on_the_loopback_device_only_its_names_are_accepted() {
        let mut settings = ServerSettings::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        let check = |settings: &ServerSettings, host: &str| {
            let request = Request::builder().header(header::HOST, host).body(()).expect("a request");
            check_host(settings, address, &request)
        };
        for good in ["localhost:8080", "127.0.0.1", "[::1]:8080", "LOCALHOST", "127.0.0.2:1", "localhost."] {
            assert_eq!(check(&settings, good), Ok(()), "{good}");
        }
        for wrong in ["evil.example", "localhost.evil.example:8080", "", "192.168.0.1", "127.0.0.1.evil.example"] {
            assert!(check(&settings, wrong).is_err(), "{wrong}");
        }
        settings.host_names = vec!["my.machine".into()];
        assert_eq!(check(&settings, "my.machine:80"), Ok(()));
        let check_request = |request: axum::http::request::Builder| {
            check_host(&settings, address, &request.body(()).expect("a request"))
        };
        let proxied =
            |host| Request::builder().uri(format!("http://{host}/v1/models")).header(header::HOST, "localhost");
        assert_eq!(check_request(proxied("127.0.0.1:8080")), Ok(()));
        assert!(check_request(proxied("evil.example")).is_err());
        assert!(
            check_request(Request::builder().header(header::HOST, "localhost").header(header::HOST, "localhost"))
                .is_err()
        );
        assert!(check_request(Request::builder()).is_err());
        assert_eq!(check_request(Request::builder().version(Version::HTTP_10)), Ok(()));
        let open = ServerSettings { host: IpAddr::from([0, 0, 0, 0]), ..ServerSettings::default() };
        for good in ["any.example", "any.example:80", "", "[fe80::1%25eth0]:8080"] {
            assert_eq!(check(&open, good), Ok(()), "{good}");
        }
    }

    #[test]
    fn hosts_are_names_with_ports() {
        for (host, name) in [
            ("LocalHost.:8080", Some("localhost")),
            ("a_b-c.example:", Some("a_b-c.example")),
            ("[::1]:65535", Some("::1")),
            ("127.0.0.1:18500@evil.com", None),
            ("localhost@evil.com", None),
            ("evil.com/localhost", None),
            ("localhost:65536", None),
            ("localhost:+80", None),
            ("localhost:80:80", None),
            ("[::1]80", None),
            ("[::1", None),
            ("::1", None),
            ("a b", None),
            ("caf\u{e9}.example", None),
        ] {
            assert_eq!(name_of(host).as_deref(), name, "{host}");
        }
        let open = ServerSettings { host: IpAddr::from([0, 0, 0, 0]), ..ServerSettings::default() };
        let address = SocketAddr::from(([0, 0, 0, 0], 8080));
        let request = |pairs: &[(header::HeaderName, &'static str)]| {
            let mut request = Request::new(());
            *request.headers_mut() = headers(pairs);
            check_host(&open, address, &request).map_err(|error| error.status.as_u16())
        };
        assert_eq!(request(&[(header::HOST, "any.example:99999")]), Err(400));
        let both = [(header::TRANSFER_ENCODING, "chunked"), (header::CONTENT_LENGTH, "2")];
        assert_eq!((request(&both), request(&both[..1]), request(&both[1..])), (Err(400), Ok(()), Ok(())));
    }

    #[test]
    fn pages_of_other_sites_may_only_open_the_page() {
        let mut settings = ServerSettings::default();
        let check = |settings: &ServerSettings, path: &str, pairs: &[(&str, &str)]| {
            let request =
                pairs.iter().fold(Request::builder().uri(path), |request, (name, value)| request.header(*name, *value));
            check_site(settings, &request.body(()).expect("a request")).is_ok()
        };
        for (site, others) in [("cross-site", false), ("same-site", false), ("same-origin", true), ("none", true)] {
            assert!(check(&settings, "/", &[("Sec-Fetch-Site", site)]), "{site}");
            assert_eq!(check(&settings, "/props?model=a", &[("Sec-Fetch-Site", site)]), others, "{site}");
        }
        // An origin is judged by itself.
        let with_origin = [("Sec-Fetch-Site", "cross-site"), ("Origin", "http://a.example")];
        assert!(check(&settings, "/props", &with_origin) && check(&settings, "/props", &[]));
        settings.cors_origins = vec!["*".into()];
        assert!(check(&settings, "/props", &with_origin[..1]));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let mut settings = ServerSettings::default();
        let own = headers(&[(header::ORIGIN, "http://localhost:8080"), (header::HOST, "localhost:8080")]);
        let other = headers(&[(header::ORIGIN, "http://evil.example"), (header::HOST, "localhost:8080")]);
        assert_eq!(origin(&settings, &own), Ok(None));
        assert_eq!(origin(&settings, &HeaderMap::new()), Ok(None));
        assert!(origin(&settings, &other).is_err());
        settings.cors_origins = vec!["http://evil.example".into()];
        assert_eq!(origin(&settings, &other), Ok(Some(HeaderValue::from_static("http://evil.example"))));
    }
}
