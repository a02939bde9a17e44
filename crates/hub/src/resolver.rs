//! Addresses of servers by their names, also where the system gives no thread.
//!
//! Looking up a name cannot be cut short, so `ureq` lets a thread wait for it, and panics where none can be had. Here
//! the caller waits itself then, as long as the system does. Left out: the lookup, which is `ureq`'s.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::unversioned::transport::time::Duration;

/// The resolver of all connections.
#[derive(Debug)]
pub(crate) struct PatientResolver;

impl Resolver for PatientResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let lookup = |uri: &Uri, config: &Config| {
            // Without an end it needs no thread.
            let unbounded = NextTimeout { after: Duration::NotHappening, ..NextTimeout::default() };
            DefaultResolver::default().resolve(uri, config, unbounded)
        };
        if timeout.after.is_not_happening() {
            return lookup(uri, config);
        }
        let (sender, answer) = sync_channel(1);
        let (asked, settings) = (uri.clone(), config.clone());
        let waits = move || drop(sender.send(lookup(&asked, &settings)));
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
