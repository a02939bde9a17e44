//! The web page, which is part of the program: a chat that shows the origin of each token, and a race.
//!
//! The browser runs the files in `page/` as they are: there is no framework and no build step, nothing to install, and
//! the reviewed code is the code that runs. The policy restricts the browser to these files and to this server.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Declares the page's files: for each its path, file name, and type.
macro_rules! files {
    ($($path:literal, $file:literal, $kind:expr;)*) => {
        const FILES: &[(&str, &str, &[u8])] =
            &[$(($path, $kind, include_bytes!(concat!("../page/", $file)) as &[u8])),*];
    };
}

files! {
    "/", "index.html", "text/html; charset=utf-8";
    "/page/style.css", "style.css", "text/css; charset=utf-8";
    "/page/answer.js", "answer.js", SCRIPT;
    "/page/app.js", "app.js", SCRIPT;
    "/page/chart.js", "chart.js", SCRIPT;
    "/page/chat.js", "chat.js", SCRIPT;
    "/page/conversations.js", "conversations.js", SCRIPT;
    "/page/detail.js", "detail.js", SCRIPT;
    "/page/examples.js", "examples.js", SCRIPT;
    "/page/figures.js", "figures.js", SCRIPT;
    "/page/frame.js", "frame.js", SCRIPT;
    "/page/inline.js", "inline.js", SCRIPT;
    "/page/markdown.js", "markdown.js", SCRIPT;
    "/page/models.js", "models.js", SCRIPT;
    "/page/panel.js", "panel.js", SCRIPT;
    "/page/problem.js", "problem.js", SCRIPT;
    "/page/race.js", "race.js", SCRIPT;
    "/page/render.js", "render.js", SCRIPT;
    "/page/requests.js", "requests.js", SCRIPT;
    "/page/settings.js", "settings.js", SCRIPT;
    "/page/store.js", "store.js", SCRIPT;
    "/page/stream.js", "stream.js", SCRIPT;
    "/page/tokens.js", "tokens.js", SCRIPT;
    "/page/words.js", "words.js", SCRIPT;
}

/// The page's Content-Security-Policy.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The paths of the page's files.
pub(crate) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, ..)| *path)
}

/// The file of a path.
pub(crate) async fn file(request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let (_, kind, bytes) = FILES.iter().find(|(known, ..)| *known == path).ok_or_else(|| ApiError::not_found(path))?;
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program has other files under the same paths.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from(Bytes::from_static(bytes))).into_response())
}
