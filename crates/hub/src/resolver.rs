//! A DNS resolver that also works if the system refuses a thread.
//!
//! A lookup cannot be interrupted, so `ureq` runs it on another thread to have a timeout, and panics if the thread is
//! refused. This resolver then runs `ureq`'s lookup on the caller's thread, without a timeout.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::unversioned::transport::time::Duration;

/// The resolver of all connections.
#[derive(Debug)]
pub(crate) struct BlockingResolver;

impl Resolver for BlockingResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let lookup = |uri: &Uri, config: &Config| {
            // Without a timeout it needs no thread.
            let unbounded = NextTimeout { after: Duration::NotHappening, ..NextTimeout::default() };
            DefaultResolver::default().resolve(uri, config, unbounded)
        };
        if timeout.after.is_not_happening() {
            return lookup(uri, config);
        }
        let (sender, answer) = sync_channel(1);
        let (uri_copy, config_copy) = (uri.clone(), config.clone());
        let waits = move || drop(sender.send(lookup(&uri_copy, &config_copy)));
        match std::thread::Builder::new().spawn(waits) {
            Err(_) => lookup(uri, config),
            Ok(_) => match answer.recv_timeout(*timeout.after) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => Err(Error::Timeout(timeout.reason)),
                Err(RecvTimeoutError::Disconnected) => Err(Error::HostNotFound),
            },
        }
    }
}
