//! Requests to the hub: redirects without the token, bounded responses, and errors of one line.
//!
//! Redirects are followed here and not by `ureq`, so that the token is only ever sent to the server of the endpoint
//! (scheme, host and port). Bodies of files are read in `download.rs`.

use std::io::Read;

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, ProxyProtocol};

use crate::checksum::Etag;
use crate::error::{HubError, excerpt};
use crate::listing::{Entry, Listing, wrong_etag};
use crate::name::Name;
use crate::resolver::BlockingResolver;
use crate::settings::{Proxy, Settings, Token};
use crate::url::{Url, encoded};

/// Maximum number of redirects in a row.
const REDIRECTS_MAX: usize = 10;
/// Maximum number of bytes of a listing.
const LISTING_MAX: u64 = 32 << 20;
/// The timeout of a listing, in idle timeouts.
const LISTING_TIMEOUTS: u32 = 6;
/// Bytes of an error's body that are read.
const ERROR_BODY_MAX: u64 = 4096;

/// A client of the hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Url,
    base: String,
    token: Option<Token>,
    idle_timeout: std::time::Duration,
}

/// Why a request failed.
pub(crate) enum RequestFailure {
    /// The connection failed: another attempt may succeed.
    Connection(String),
    /// Another error, which would be the same the next time.
    Final(HubError),
}

impl Client {
    /// A client with these settings.
    pub(crate) fn new(settings: &Settings) -> Result<Self, HubError> {
        let base = settings.endpoint.clone();
        let endpoint = crate::settings::endpoint(&base)?;
        let idle_timeout = Some(settings.idle_timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_resolve(idle_timeout)
            .timeout_connect(idle_timeout)
            .timeout_send_request(idle_timeout)
            .timeout_recv_response(idle_timeout)
            .timeout_per_read(idle_timeout)
            .proxy(settings.proxy.as_ref().map(proxy).transpose()?)
            .user_agent(concat!("foretoken/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(root_certificates(settings)?).build());
        let agent = Agent::with_parts(config.build(), DefaultConnector::default(), BlockingResolver);
        Ok(Self { agent, endpoint, base, token: settings.token.clone(), idle_timeout: settings.idle_timeout })
    }

    /// The hub, for messages.
    pub(crate) fn server(&self) -> String {
        self.endpoint.server()
    }

    /// The URL of a file at a commit.
    pub(crate) fn file_url(&self, name: &Name, commit: &str, path: &str) -> String {
        format!("{}/{}/resolve/{}/{}", self.base, name.repo(), encoded(commit, false), encoded(path, true))
    }

    /// The files of a repository at a revision.
    pub(crate) fn listing(&self, name: &Name, revision: &str) -> Result<Listing, HubError> {
        let revision = encoded(revision, false);
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.base, name.repo());
        let limit = Some(self.idle_timeout * LISTING_TIMEOUTS);
        let response = self.follow(&url, |url| {
            let request = self.with_token(self.agent.get(url.to_string()), url);
            request.config().timeout_global(limit).build().call()
        });
        let mut response = response.map_err(|why| self.said(why))?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(name, &mut response));
        }
        let mut text = Vec::new();
        let read = response.body_mut().as_reader().take(LISTING_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| HubError::NoNetwork(format!("no connection to {}: {error}", self.server())))?;
        if text.len() as u64 > LISTING_MAX {
            return Err(HubError::Content(format!("listing: expected at most {LISTING_MAX} bytes, found more")));
        }
        Listing::of_hub(&text)
    }

    /// Size and checksum of a file that a listing lacks.
    pub(crate) fn entry(&self, name: &Name, commit: &str, path: &str) -> Result<Entry, HubError> {
        let linked = |headers: &HeaderMap| headers.contains_key("x-linked-etag");
        let url = self.file_url(name, commit, path);
        let response = self.follow_until(&url, linked, |url| {
            self.with_token(self.agent.head(url.to_string()), url).header("Accept-Encoding", "identity").call()
        });
        let mut response = response.map_err(|why| self.said(why))?;
        let headers = response.headers();
        let is_linked = linked(headers);
        if response.status() != StatusCode::OK && !is_linked {
            return Err(self.refused(name, &mut response).at(path));
        }
        let (etag, size) = if is_linked { ("x-linked-etag", "x-linked-size") } else { ("etag", "content-length") };
        let etag = header(headers, etag).unwrap_or_default();
        let size = header(headers, size).and_then(|text| text.parse().ok());
        let size = size.ok_or_else(|| HubError::Content(format!("{path}: size: expected a number, found none")))?;
        let etag = Etag::parse(etag).ok_or_else(|| wrong_etag(path, etag))?;
        Ok(Entry { size: Some(size), git: Some(etag.clone()).filter(|etag| !etag.is_sha256()), etag: Some(etag) })
    }

    /// A file from byte `from` on.
    pub(crate) fn file(&self, url: &str, from: u64) -> Result<Response<Body>, RequestFailure> {
        self.follow(url, |url| {
            let request = self.with_token(self.agent.get(url.to_string()), url).header("Accept-Encoding", "identity");
            let request = if from > 0 { request.header("Range", format!("bytes={from}-")) } else { request };
            request.call()
        })
    }

    fn with_token<B>(&self, request: ureq::RequestBuilder<B>, url: &Url) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) if url.same_server(&self.endpoint) => {
                request.header("Authorization", format!("Bearer {}", token.text))
            }
            _ => request,
        }
    }

    fn follow(
        &self,
        url: &str,
        ask: impl Fn(&Url) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, RequestFailure> {
        self.follow_until(url, |_| false, ask)
    }

    /// Sends a request and follows redirects until a response is not a redirect, or has `enough` headers.
    fn follow_until(
        &self,
        url: &str,
        enough: impl Fn(&HeaderMap) -> bool,
        ask: impl Fn(&Url) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, RequestFailure> {
        let refused = |found: String| RequestFailure::Final(HubError::Content(found));
        let mut url = Url::parse(url).ok_or_else(|| refused(format!("expected an address, found {}", excerpt(url))))?;
        for _ in 0..=REDIRECTS_MAX {
            let response = ask(&url).map_err(|error| request_failure(&url, error))?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            if !is_redirect || enough(response.headers()) {
                return Ok(response);
            }
            let location = header(response.headers(), "location").unwrap_or_default();
            url = url.join(location).ok_or_else(|| {
                let from = url.server();
                refused(format!(
                    "{from}: redirect: expected an address as safe as this, found \"{}\"",
                    excerpt(location)
                ))
            })?;
        }
        Err(refused(format!("{}: expected at most {REDIRECTS_MAX} redirects, found more", self.server())))
    }

    fn said(&self, why: RequestFailure) -> HubError {
        match why {
            RequestFailure::Connection(why) => HubError::NoNetwork(format!("no connection to {why}")),
            RequestFailure::Final(error) => error,
        }
    }

    /// The error of a status that is not a success.
    pub(crate) fn refused(&self, name: &Name, response: &mut Response<Body>) -> HubError {
        let (status, repo) = (response.status(), name.repo());
        let code = header(response.headers(), "x-error-code").unwrap_or_default().to_string();
        let said = header(response.headers(), "x-error-message").map(str::to_string);
        let said = said.or_else(|| {
            let mut body = String::new();
            response.body_mut().as_reader().take(ERROR_BODY_MAX).read_to_string(&mut body).ok()?;
            let value: serde_json::Value = serde_json::from_str(&body).ok()?;
            value["error"].as_str().map(str::to_string)
        });
        let said =
            said.filter(|said| !said.is_empty()).map(|said| format!(" ({})", excerpt(&said))).unwrap_or_default();
        let token = match &self.token {
            Some(token) => format!("the token of {} does not open it", token.source),
            None => "HF_TOKEN is not set".to_string(),
        };
        let server = self.server();
        match (status.as_u16(), code.as_str()) {
            (_, "GatedRepo") => HubError::Refused(format!(
                "gated: access is asked for at {server}/{repo}, and {token}: status {status}{said}"
            )),
            (404, "RevisionNotFound") => HubError::Refused(format!("no revision {} at {server}", name.revision())),
            (404, "EntryNotFound") => HubError::Refused(format!("no such file at {server}{said}")),
            (401 | 403, _) => HubError::Refused(format!(
                "not found at {server}, private or gated, and {token}: status {status}{said}"
            )),
            (404, _) => HubError::Refused(format!("not found at {server}: status {status}{said}")),
            _ => HubError::NoNetwork(format!("{server}: expected an answer, found status {status}{said}")),
        }
    }
}

/// A header's text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn request_failure(url: &Url, error: ureq::Error) -> RequestFailure {
    let server = url.server();
    match error {
        ureq::Error::HostNotFound => RequestFailure::Connection(format!("{server}: no such host")),
        ureq::Error::Io(error) => RequestFailure::Connection(format!("{server}: {error}")),
        ureq::Error::Timeout(_) => RequestFailure::Connection(format!("{server}: no answer in time")),
        ureq::Error::ConnectionFailed => RequestFailure::Connection(format!("{server}: refused")),
        ureq::Error::ConnectProxyFailed(why) => {
            RequestFailure::Connection(format!("{server}: proxy: {}", excerpt(&why)))
        }
        // A broken connection may look like an error of the protocol.
        other => RequestFailure::Connection(format!("{server}: {}", excerpt(&other.to_string()))),
    }
}

/// A proxy for `ureq`. Other protocols than HTTP are refused, since `ureq` would ignore such a proxy.
fn proxy(settings: &Proxy) -> Result<ureq::Proxy, HubError> {
    let known = [ProxyProtocol::Http, ProxyProtocol::Https];
    let found = ureq::Proxy::new(&settings.address).ok().filter(|proxy| known.contains(&proxy.protocol()));
    let wrong = || HubError::Usage(format!("{}: expected http(s)://HOST:PORT, found another address", settings.source));
    let found = found.ok_or_else(wrong)?;
    let mut built = ureq::Proxy::builder(found.protocol()).host(found.host()).port(found.port());
    built = found.username().into_iter().fold(built, ureq::ProxyBuilder::username);
    built = found.password().into_iter().fold(built, ureq::ProxyBuilder::password);
    // A name includes its subdomains, as with curl.
    built = settings.no_proxy.iter().fold(built, |built, host| built.no_proxy(host).no_proxy(&format!(".{host}")));
    built.build().map_err(|_| wrong())
}

/// The root certificates of the file in the settings, or else Mozilla's, which are built in. Only the file's
/// certificates are trusted, so a file without any is an error.
fn root_certificates(settings: &Settings) -> Result<RootCerts, HubError> {
    let Some(path) = &settings.certificates else { return Ok(RootCerts::WebPki) };
    let place = path.display();
    let pem = whole::read(path, SETTINGS_BYTES_MAX)
        .map_err(|error| HubError::Usage(format!("SSL_CERT_FILE: {place}: cannot be read: {error}")))?;
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let found: Vec<Certificate<'static>> = parse_pem(&pem).filter_map(certificate).collect();
    match found.is_empty() {
        true => Err(HubError::Usage(format!("SSL_CERT_FILE: {place}: expected certificates (PEM), found none"))),
        false => Ok(RootCerts::new_with_certs(&found)),
    }
}
