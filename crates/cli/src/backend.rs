//! What runs the target: this process, or the ranks of a job that `mpirun` started (`--backend mpi`).
//!
//! Every rank is started with the same command line. Rank 0 runs the command, and its targets run on all ranks; the
//! others follow it. Builds without the feature `mpi` have only this process.

use clap::Args;
use foretoken_console::failure::Failure;
#[cfg(feature = "mpi")]
use foretoken_console::values;

use crate::arguments::defaults::DefaultValue;

/// The backends of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// This process.
    Cpu,
    /// The ranks of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi,
}

/// A backend by its name.
fn named(word: &str) -> Result<BackendName, String> {
    match word {
        "cpu" => Ok(BackendName::Cpu),
        #[cfg(feature = "mpi")]
        "mpi" => Ok(BackendName::Mpi),
        #[cfg(not(feature = "mpi"))]
        "mpi" => Err("expected cpu (mpi is in builds with cargo's --features mpi)".to_string()),
        _ => Err("expected cpu or mpi".to_string()),
    }
}

/// The options of the backend.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "General")]
pub struct BackendOptions {
    /// What runs the model: cpu, or mpi, the processes that mpirun has started with this line
    ///
    /// With mpi each process has a part of every matrix, on one machine or on several; drafts, sampling and output are
    /// the first one's. The text is the same. It is in builds with cargo's --features mpi.
    #[arg(long, value_name = "NAME", default_value = "cpu", global = true, hide_short_help = true,
        value_parser = named)]
    backend: BackendName,
    /// Seconds after which a process of --backend mpi that does not answer ends all
    #[cfg(feature = "mpi")]
    #[arg(long, value_name = "SECONDS", default_value = "30", global = true, hide_short_help = true,
        value_parser = values::seconds, allow_negative_numbers = true)]
    rank_timeout: f32,
}

impl BackendOptions {
    /// Runs a command with the backend. A rank that is not the first follows it instead.
    ///
    /// # Errors
    /// As the command, or the job of an MPI backend cannot begin.
    #[cfg_attr(not(feature = "mpi"), expect(unused_variables, reason = "ranks compare their defaults"))]
    pub fn run(&self, defaults: &[DefaultValue], command: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        match self.backend {
            BackendName::Cpu => command(),
            #[cfg(feature = "mpi")]
            BackendName::Mpi => on_ranks(std::time::Duration::from_secs_f32(self.rank_timeout), defaults, command),
        }
    }
}

/// Joins the job, and runs the command on rank 0.
#[cfg(feature = "mpi")]
fn on_ranks(
    limit: std::time::Duration,
    defaults: &[DefaultValue],
    command: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    use foretoken_console::{interrupts, progress};
    use foretoken_ranks::{Greeting, OpenMpi, Role, join};

    let mpi = std::sync::Arc::new(OpenMpi::start(progress::error).map_err(Failure::Other)?);
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let settings = words.chain(defaults.iter().map(ToString::to_string)).collect();
    let role = join(Box::new(std::sync::Arc::clone(&mpi)), limit, &Greeting::new(settings));
    if let Ok(Role::Follower(_)) = &role {
        // mpirun sends signals to all ranks. Rank 0 may let requests finish, for which it needs the others.
        interrupts::ignore_the_first_signal();
    }
    let result = match role {
        Err(refused) => Err(refused.message.map_or(Failure::Closed, Failure::Other)),
        Ok(role) => match role.leader() {
            // A rank that cannot follow does not wait for the end of the job: the others wait for its answer.
            Err(message) => mpi.abort(&message),
            Ok(None) => Ok(()),
            Ok(Some(leader)) => {
                foretoken::choose_backend(Box::new(leader.clone()));
                let result = command();
                // Where the command has failed, that is what is reported.
                let stopped = leader.stop().map_err(|error| Failure::Other(error.to_string()));
                result.and(stopped)
            }
        },
    };
    mpi.finish();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_in_the_build_names_its_feature() {
        assert_eq!(named("cpu"), Ok(BackendName::Cpu));
        assert_eq!(named("cuda"), Err("expected cpu or mpi".to_string()));
        if cfg!(not(feature = "mpi")) {
            assert!(named("mpi").expect_err("it is not there").contains("--features mpi"));
        }
    }
}
