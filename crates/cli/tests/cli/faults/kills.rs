//! Runs that are killed at random moments: each file that they write is the old or the new one, and the next run
//! removes what is left behind.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Case, Sandbox, answers, cases};

/// Kills runs of the writing commands whose names contain `name` at random moments, `kills` times in all.
fn kill(name: &str, kills: usize) {
    let cases = cases();
    let cases: Vec<&Case> = cases.iter().filter(|case| !case.written.is_empty() && case.name.contains(name)).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below.max(1)
    };
    let mut in_time = 0;
    for case in &cases {
        let sandbox = Sandbox::new();
        // Files that no command reads have the same bytes in each run.
        let unread = |name: &&str| case.written.iter().any(|(file, reader)| file == name && reader.concat().is_empty());
        let unread = || sandbox.files().into_iter().filter(|(name, _)| unread(&name.as_str()));
        let old: Vec<_> = unread().collect();
        let started = Instant::now();
        let output = sandbox.run(case, &[], Stdio::null());
        assert!(output.status.success(), "{}: {}", case.name, String::from_utf8_lossy(&output.stderr));
        let duration = started.elapsed();
        let new: Vec<_> = unread().collect();
        let known: BTreeSet<String> = sandbox.files().into_iter().map(|(name, _)| name).collect();
        for round in 0..kills / cases.len() {
            old.iter().for_each(|(name, bytes)| std::fs::write(sandbox.at(name), bytes).expect("written"));
            let mut command = sandbox.command(case, &[]);
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
            let input = case.input.replace("{}", &sandbox.folder.path().display().to_string());
            let _ = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input.as_bytes());
            std::thread::sleep(Duration::from_micros(random(duration.as_micros() as u64)));
            let _ = child.kill();
            in_time += usize::from(!child.wait().expect("it ends").success());
            assert_eq!(unread().count(), old.len(), "{}: a file is missing", case.name);
            for found in unread() {
                let name = &found.0;
                assert!(old.contains(&found) || new.contains(&found), "{} {name}: neither old nor new", case.name);
            }
            // Every fifth time the program reads the files again.
            for (name, reader) in case.written.iter().filter(|(_, reader)| !reader.concat().is_empty()) {
                if round % 5 > 0 {
                    continue;
                }
                sandbox.read_again(name, reader, case.name);
                if *name == answers::NAME {
                    // The next runs answer all lines again.
                    std::fs::remove_file(sandbox.at(name)).expect("it is there");
                }
            }
        }
        sandbox.next_run_cleans_up(case, &known);
    }
    println!("{in_time} of {kills} runs were killed before their end");
}

#[test]
fn a_killed_run_leaves_old_or_new_files() {
    kill("", 40);
}

#[test]
#[ignore = "a quarter of an hour: ten thousand kills, or as many as FORETOKEN_KILLS says"]
fn ten_thousand_killed_runs_leave_old_or_new_files() {
    let kills = std::env::var("FORETOKEN_KILLS").ok().and_then(|kills| kills.parse().ok());
    kill(&std::env::var("FORETOKEN_FAULTS").unwrap_or_default(), kills.unwrap_or(10_000));
}
