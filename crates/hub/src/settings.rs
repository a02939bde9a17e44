//! Settings of the hub and its cache folder, from the environment variables of `huggingface_hub`.
//!
//! `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_DOWNLOAD_TIMEOUT`,
//! and `SSL_CERT_FILE` for certificates instead of the built-in ones. The proxy is chosen as curl does: `HTTPS_PROXY`
//! (`HTTP_PROXY` for a hub without TLS), else `ALL_PROXY`, and `NO_PROXY`, in upper or lower case.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};

use crate::error::{HubError, excerpt};
use crate::url::Url;

/// The default endpoint.
const HUGGING_FACE: &str = "https://huggingface.co";
/// Seconds without a byte after which a connection is closed.
const IDLE_TIMEOUT_DEFAULT: u64 = 10;

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its URL, `http(s)://HOST:PORT`; it may have a password, so it is never shown.
    pub address: String,
    /// The variable that sets it, for messages.
    pub source: String,
    /// Hosts that are connected to directly, from `NO_PROXY`.
    pub no_proxy: Vec<String>,
}

/// An access token.
#[derive(Clone)]
pub struct Token {
    /// The token itself.
    pub text: String,
    /// The variable or the file that it is from, for messages.
    pub source: String,
}

/// Settings of the hub.
#[derive(Clone)]
pub struct Settings {
    /// The cache folder.
    pub cache: PathBuf,
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// The access token, which is sent only to the endpoint.
    pub token: Option<Token>,
    /// Whether only the cache is used.
    pub offline: bool,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// The pause before a broken download is retried; it doubles with each attempt.
    pub retry_pause: Duration,
    /// A proxy; with `None` the hub is connected to directly, whatever the environment says.
    pub proxy: Option<Proxy>,
    /// A file of certificates (PEM) that are trusted instead of the built-in ones.
    pub certificates: Option<PathBuf>,
}

impl Settings {
    /// The settings of the environment.
    ///
    /// # Errors
    /// A variable is invalid, or there is no home folder for the cache.
    pub fn from_environment() -> Result<Self, HubError> {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = set("HOME").or_else(|| set("USERPROFILE")).map(PathBuf::from);
        // As Python's `expanduser`, for the user's own folder.
        let expanded = |value: OsString| match (Path::new(&value).strip_prefix("~"), &user) {
            (Ok(rest), Some(user)) => user.join(rest),
            _ => PathBuf::from(value),
        };
        let folder = |name: &str| set(name).map(&expanded);
        let home = folder("HF_HOME").or_else(|| {
            let cache = folder("XDG_CACHE_HOME").or_else(|| Some(user.as_ref()?.join(".cache")))?;
            Some(cache.join("huggingface"))
        });
        let cache = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub")));
        let cache = cache.ok_or_else(|| {
            HubError::Usage("HF_HUB_CACHE: expected a folder, found none, nor HF_HOME or HOME".to_string())
        })?;
        let cache = std::path::absolute(&cache).map_err(|error| HubError::disk(&cache, "found", &error))?;
        let address = set("HF_ENDPOINT").map_or(HUGGING_FACE.into(), |value| value.to_string_lossy().into_owned());
        let address = address.trim().trim_end_matches('/').to_string();
        let with_tls = endpoint(&address)?.has_tls();
        let token_file = folder("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
        Ok(Self {
            cache,
            endpoint: address,
            token: token(&set, token_file.as_deref())?,
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().any(|name| is_true(set(name))),
            idle_timeout: idle_timeout(set("HF_HUB_DOWNLOAD_TIMEOUT"))?,
            retry_pause: Duration::from_millis(500),
            proxy: proxy(&set, with_tls),
            certificates: folder("SSL_CERT_FILE"),
        })
    }
}

fn is_true(value: Option<OsString>) -> bool {
    let value = value.map(|value| value.to_string_lossy().to_uppercase());
    value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str()))
}

/// The URL of a hub.
pub(crate) fn endpoint(text: &str) -> Result<Url, HubError> {
    let wrong = || HubError::Usage(format!("HF_ENDPOINT: expected http(s)://HOST, found \"{}\"", excerpt(text)));
    Url::parse(text).ok_or_else(wrong)
}

/// The token of the environment, or else of the file that `hf auth login` writes. It is never shown.
fn token(set: &dyn Fn(&str) -> Option<OsString>, file: Option<&Path>) -> Result<Option<Token>, HubError> {
    let variable = |name: &str| Some((name.to_string(), set(name)?.to_string_lossy().into_owned()));
    let of_file = || {
        let bytes = whole::read(file?, SETTINGS_BYTES_MAX).ok()?;
        Some((file?.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()))
    };
    let found = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")).or_else(of_file);
    let Some((source, text)) = found else { return Ok(None) };
    let text = text.trim();
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(HubError::Usage(format!("{source}: expected a token of visible ASCII letters, found others")));
    }
    Ok(Some(Token { text: text.to_string(), source }).filter(|token| !token.text.is_empty()))
}

/// The proxy for a hub with or without TLS.
fn proxy(set: &dyn Fn(&str) -> Option<OsString>, with_tls: bool) -> Option<Proxy> {
    let first = |names: &[&str]| {
        names.iter().flat_map(|name| [name.to_lowercase(), name.to_string()]).find_map(|name| {
            let value = set(&name)?.to_string_lossy().trim().to_string();
            Some((name, value))
        })
    };
    let (source, address) = first(&[if with_tls { "HTTPS_PROXY" } else { "HTTP_PROXY" }, "ALL_PROXY"])?;
    let no_proxy = first(&["NO_PROXY"]).map(|(_, hosts)| hosts).unwrap_or_default();
    let no_proxy = no_proxy.split(',').map(|host| host.trim().to_string()).filter(|host| !host.is_empty()).collect();
    Some(Proxy { address, source, no_proxy })
}

fn idle_timeout(value: Option<OsString>) -> Result<Duration, HubError> {
    let Some(value) = value else { return Ok(Duration::from_secs(IDLE_TIMEOUT_DEFAULT)) };
    let seconds = value.to_str().and_then(|text| text.trim().parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    let wrong =
        || HubError::Usage(format!("HF_HUB_DOWNLOAD_TIMEOUT: expected whole seconds from 1 up, found {value:?}"));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        let found = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
        Settings::from_variables(&found)
    }

    #[test]
    fn folders_are_those_of_transformers() {
        let cache = |variables: &[(&str, &str)]| read(variables).map(|settings| settings.cache.display().to_string());
        assert_eq!(cache(&[("HOME", "/h")]), Ok("/h/.cache/huggingface/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Ok("/x/huggingface/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/hf")]), Ok("/h/hf/hub".into()));
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), Ok("/c".into()));
        assert_eq!(cache(&[("HF_HUB_CACHE", ""), ("HF_HOME", "/hf")]), Ok("/hf/hub".into()));
        assert!(matches!(cache(&[]), Err(HubError::Usage(line)) if line.starts_with("HF_HUB_CACHE: expected")));
    }

    #[test]
    fn the_token_is_that_of_the_variable_or_else_of_the_file() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        std::fs::write(folder.path().join("token"), " hf_file\n").expect("a file can be written");
        let home = folder.path().display().to_string();
        let token = |more: (&str, &str)| {
            let settings = read(&[("HF_HOME", home.as_str()), more]);
            settings.map(|settings| settings.token.map(|token| (token.text, token.source)))
        };
        let file = format!("{home}/token");
        assert_eq!(token(("HF_TOKEN", "hf_word")), Ok(Some(("hf_word".into(), "HF_TOKEN".into()))));
        assert_eq!(token(("HF_TOKEN", "")), Ok(Some(("hf_file".into(), file))));
        assert_eq!(token(("HF_TOKEN_PATH", "/nowhere")), Ok(None));
        let Err(HubError::Usage(line)) = token(("HF_TOKEN", "secret\nX-Header: 1")) else { panic!("it is taken") };
        assert!(!line.contains("secret"), "{line}");
    }

    #[test]
    fn the_proxy_is_chosen_as_curl_does() {
        let (home, http) = (("HOME", "/h"), ("HF_ENDPOINT", "http://hub"));
        let source = |variables: &[(&str, &str)]| {
            let settings = read(&[&[home], variables].concat()).expect("the variables are good");
            settings.proxy.map(|proxy| proxy.source)
        };
        let (https_proxy, http_proxy, all) = (("HTTPS_PROXY", "a:1"), ("http_proxy", "b:1"), ("ALL_PROXY", "c:1"));
        assert_eq!(source(&[https_proxy, http_proxy, all]).as_deref(), Some("HTTPS_PROXY"));
        assert_eq!(source(&[https_proxy, http_proxy, all, http]).as_deref(), Some("http_proxy"));
        assert_eq!(source(&[all, http]).as_deref(), Some("ALL_PROXY"));
        assert_eq!((source(&[http_proxy]), source(&[("HTTPS_PROXY", "")])), (None, None));
        let settings = read(&[home, all, ("no_proxy", "localhost, .example.com,")]).expect("the variables are good");
        assert_eq!(settings.proxy.map(|proxy| proxy.no_proxy), Some(vec!["localhost".into(), ".example.com".into()]));
    }

    #[test]
    fn invalid_variables_are_named() {
        let home = ("HOME", "/h");
        let offline = |value| read(&[home, ("HF_HUB_OFFLINE", value)]).map(|settings| settings.offline);
        assert_eq!(["1", "true", "YES", "0", ""].map(offline), [true, true, true, false, false].map(Ok));
        for (name, value) in
            [("HF_ENDPOINT", "ftp://x"), ("HF_ENDPOINT", "huggingface.co"), ("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]
        {
            let Err(HubError::Usage(line)) = read(&[home, (name, value)]).map(|_| ()) else { panic!("{value}") };
            assert!(line.starts_with(name), "{line}");
        }
        let mirror = read(&[home, ("HF_ENDPOINT", "https://mirror.example/hub/")]).map(|settings| settings.endpoint);
        assert_eq!(mirror, Ok("https://mirror.example/hub".into()));
    }
}
