//! Tier 2: real Linux guests, booted once and then forked for every test.
//!
//! `cargo xtask linux-tests` runs this where guests can run: here if the processor runs guest
//! kernels, otherwise in the software host. Started by itself on a machine that cannot, it says so and
//! does nothing. There are no assertions about time; a test that hangs is ended, with its name, by a
//! watchdog. When all tests are done, no monitor may be left.

mod agent;
mod bed;
mod call;
mod end;
mod hazard;
mod kill;
mod life;
mod model;
mod save;
mod state;
mod twin;

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_tests::linux;

/// No test takes this long, even in an emulated host.
const TEST_MAX: Duration = Duration::from_secs(300);

/// Tests that run, and since when.
static RUNNING: Mutex<BTreeMap<&str, Instant>> = Mutex::new(BTreeMap::new());

fn trial(name: &'static str, test: fn()) -> Trial {
    Trial::test(name, move || attempt(name, test).map_err(Into::into))
}

fn attempt(name: &'static str, test: fn()) -> Result<(), String> {
    let begun = Instant::now();
    running(|tests| tests.insert(name, begun));
    let result = std::panic::catch_unwind(test);
    running(|tests| tests.remove(name));
    eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("it panicked").to_owned()
    })
}

fn running<T>(act: impl FnOnce(&mut BTreeMap<&'static str, Instant>) -> T) -> T {
    act(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Ends everything when a test takes too long.
fn watch() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let late = running(|tests| {
            let mut tests = tests.iter();
            tests.find(|(_, begun)| begun.elapsed() > TEST_MAX).map(|(name, _)| *name)
        });
        if let Some(name) = late {
            eprintln!("{name} hangs: it is not done after {TEST_MAX:?}");
            for pid in linux::processes_of(bed::bed().directory.path()).unwrap_or_default() {
                // Who is gone needs no killing.
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            process::exit(101);
        }
    }
}

/// Whether guests can run here.
fn possible() -> bool {
    if env::var_os("RAMET_LINUX_TESTS").is_some() {
        return true;
    }
    let monitor = env::var_os("RAMET_VMM").map(PathBuf::from);
    monitor.is_some_and(|monitor| linux::runs_kernels(&monitor).unwrap_or(false))
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list && !possible() {
        eprintln!("SKIPPED: Linux guests cannot run here; use `cargo xtask linux-tests`");
        return ExitCode::SUCCESS;
    }
    thread::spawn(watch);
    let conclusion = libtest_mimic::run(&arguments, tests());
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let left = bed::bed().end();
    if !left.is_empty() {
        eprintln!("monitors {left:?} are left after all tests");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

macro_rules! trials {
    ($($module:ident: $($test:ident),+;)+) => {
        vec![$($(trial(concat!(stringify!($module), "::", stringify!($test)), $module::$test)),+),+]
    };
}

fn tests() -> Vec<Trial> {
    trials! {
        agent: knows_who_it_is, exec_tells_how_it_ended, exec_gets_what_it_was_given,
            a_timeout_ends_the_whole_group, a_terminal_has_a_size, files_go_in_and_out,
            holes_stay_holes, changes_are_reported, processes_and_usage, hundreds_of_streams,
            a_large_file_up_and_down, a_slow_reader_slows_the_guest, a_server_is_dialled;
        twin: random_numbers_differ, a_deterministic_fork_repeats, names_are_new,
            secrets_are_not_inherited, clocks_go_on, timers_fire_everywhere,
            an_idle_vcpu_stays_idle, nothing_runs_before_the_identity;
        hazard: the_source_keeps_its_sessions, a_flow_stays_with_the_source, disks_are_separate,
            a_second_fork_leaves_the_first_child_alone, forks_at_once_are_all_served,
            a_fork_during_heavy_writes, a_wait_in_epoll_is_not_disturbed, two_vcpus_under_load;
        state: arrays_in_a_session, a_loopback_connection, a_process_tree_with_pipes,
            a_database_in_mid_transaction, pids_and_offsets;
        call: everyone_learns_who_it_is, a_refusal_is_told, nobody_listens;
        life: a_paused_machine_stands_still, a_paused_machine_is_forked,
            what_ends_during_a_pause_ends_after_it,
            a_checkpoint_is_gone_back_to, ten_generations, sixteen_children;
        save: a_running_machine_is_saved_and_restored, a_template_is_forked_five_times,
            what_was_saved_is_checked, saved_memory_and_disks_are_checked;
        end: it_powers_off, it_reboots, it_panics, a_fork_while_it_panics,
            a_guest_that_does_not_come, a_full_disk_below_the_layers;
        kill: a_child_is_killed_while_it_is_made, a_source_is_killed_while_it_forks;
        model: known_walks, another_walk;
    }
}
