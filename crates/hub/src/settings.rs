//! Where the hub and its cache folder are, as the environment says it, in the words of `huggingface_hub`.
//!
//! `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_DOWNLOAD_TIMEOUT`,
//! and `SSL_CERT_FILE` for certificates instead of those that are part of the program. A proxy is the one that curl
//! would take: `HTTPS_PROXY` (`HTTP_PROXY` for a hub without TLS), else `ALL_PROXY`, and `NO_PROXY`, in capitals or
//! not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};

use crate::error::{HubError, shown};
use crate::url::Url;

/// The hub, if the environment names no other.
const HUGGING_FACE: &str = "https://huggingface.co";
/// Seconds without a byte after which a connection is given up.
const STALL_DEFAULT: u64 = 10;

/// Who hands requests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its address, `http(s)://HOST:PORT`; it may hold a password, and is not shown.
    pub address: String,
    /// The variable that says it, for messages.
    pub place: String,
    /// Hosts that are asked directly, as `NO_PROXY` has them.
    pub without: Vec<String>,
}

/// Who asks.
#[derive(Clone)]
pub struct Token {
    /// What is sent.
    pub text: String,
    /// The variable or the file that says it, for messages.
    pub place: String,
}

/// Where to look, and as whom.
#[derive(Clone)]
pub struct Settings {
    /// The cache folder.
    pub cache: PathBuf,
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// Who asks; sent to the endpoint alone.
    pub token: Option<Token>,
    /// Whether only the cache is asked.
    pub offline: bool,
    /// How long a connection may be silent.
    pub stall: Duration,
    /// How long is waited before a broken download is taken up again; each further time twice as long.
    pub retry_pause: Duration,
    /// A proxy; none: the hub is asked directly, whatever the environment says.
    pub proxy: Option<Proxy>,
    /// A file of certificates (PEM) that are trusted instead of those that are part of the program.
    pub certificates: Option<PathBuf>,
}

impl Settings {
    /// What the environment says.
    ///
    /// # Errors
    /// A variable holds something that it cannot, or there is no home folder to have a cache in.
    pub fn from_environment() -> Result<Self, HubError> {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = set("HOME").or_else(|| set("USERPROFILE")).map(PathBuf::from);
        // As Python's expanduser, for a folder of one's own.
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
            stall: stall(set("HF_HUB_DOWNLOAD_TIMEOUT"))?,
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

/// The address of a hub.
pub(crate) fn endpoint(text: &str) -> Result<Url, HubError> {
    let wrong = || HubError::Usage(format!("HF_ENDPOINT: expected http(s)://HOST, found \"{}\"", shown(text)));
    Url::parse(text).ok_or_else(wrong)
}

/// A token of the environment, or else of the file that `hf auth login` writes. It is never shown.
fn token(set: &dyn Fn(&str) -> Option<OsString>, file: Option<&Path>) -> Result<Option<Token>, HubError> {
    let variable = |name: &str| Some((name.to_string(), set(name)?.to_string_lossy().into_owned()));
    let of_file = || {
        let bytes = whole::read(file?, SETTINGS_BYTES_MAX).ok()?;
        Some((file?.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()))
    };
    let found = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")).or_else(of_file);
    let Some((place, text)) = found else { return Ok(None) };
    let text = text.trim();
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(HubError::Usage(format!("{place}: expected a token of visible ASCII letters, found others")));
    }
    Ok(Some(Token { text: text.to_string(), place }).filter(|token| !token.text.is_empty()))
}

/// The proxy for a hub with or without TLS.
fn proxy(set: &dyn Fn(&str) -> Option<OsString>, with_tls: bool) -> Option<Proxy> {
    let first = |names: &[&str]| {
        names.iter().flat_map(|name| [name.to_lowercase(), name.to_string()]).find_map(|name| {
            let value = set(&name)?.to_string_lossy().trim().to_string();
            Some((name, value))
        })
    };
    let (place, address) = first(&[if with_tls { "HTTPS_PROXY" } else { "HTTP_PROXY" }, "ALL_PROXY"])?;
    let without = first(&["NO_PROXY"]).map(|(_, hosts)| hosts).unwrap_or_default();
    let without = without.split(',').map(|host| host.trim().to_string()).filter(|host| !host.is_empty()).collect();
    Some(Proxy { address, place, without })
}

fn stall(value: Option<OsString>) -> Result<Duration, HubError> {
    let Some(value) = value else { return Ok(Duration::from_secs(STALL_DEFAULT)) };
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
    fn the_token_is_the_variables_or_else_the_files() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        std::fs::write(folder.path().join("token"), " hf_file\n").expect("a file can be written");
        let home = folder.path().display().to_string();
        let token = |more: (&str, &str)| {
            let settings = read(&[("HF_HOME", home.as_str()), more]);
            settings.map(|settings| settings.token.map(|token| (token.text, token.place)))
        };
        let file = format!("{home}/token");
        assert_eq!(token(("HF_TOKEN", "hf_word")), Ok(Some(("hf_word".into(), "HF_TOKEN".into()))));
        assert_eq!(token(("HF_TOKEN", "")), Ok(Some(("hf_file".into(), file))));
        assert_eq!(token(("HF_TOKEN_PATH", "/nowhere")), Ok(None));
        let Err(HubError::Usage(line)) = token(("HF_TOKEN", "secret\nX-Header: 1")) else { panic!("it is taken") };
        assert!(!line.contains("secret"), "{line}");
    }

    #[test]
    fn a_proxy_is_the_one_that_curl_would_take() {
        let (home, http) = (("HOME", "/h"), ("HF_ENDPOINT", "http://hub"));
        let place = |variables: &[(&str, &str)]| {
            let settings = read(&[&[home], variables].concat()).expect("the variables are good");
            settings.proxy.map(|proxy| proxy.place)
        };
        let (https_proxy, http_proxy, all) = (("HTTPS_PROXY", "a:1"), ("http_proxy", "b:1"), ("ALL_PROXY", "c:1"));
        assert_eq!(place(&[https_proxy, http_proxy, all]).as_deref(), Some("HTTPS_PROXY"));
        assert_eq!(place(&[https_proxy, http_proxy, all, http]).as_deref(), Some("http_proxy"));
        assert_eq!(place(&[all, http]).as_deref(), Some("ALL_PROXY"));
        assert_eq!((place(&[http_proxy]), place(&[("HTTPS_PROXY", "")])), (None, None));
        let settings = read(&[home, all, ("no_proxy", "localhost, .example.com,")]).expect("the variables are good");
        assert_eq!(settings.proxy.map(|proxy| proxy.without), Some(vec!["localhost".into(), ".example.com".into()]));
    }

    #[test]
    fn variables_that_cannot_be_are_named() {
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
