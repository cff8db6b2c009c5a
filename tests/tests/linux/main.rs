//! Tier 2: real Linux guests, booted once and then forked for every test.
//!
//! `cargo xtask linux-tests` runs this where guests can run: here if the processor runs guest
//! kernels, otherwise in the software host. Started by itself on a machine that cannot, it says so and
//! does nothing. When all tests are done, no monitor may be left.

mod agent;
mod bed;
mod call;
mod end;
mod hazard;
mod kill;
mod life;
mod model;
mod net;
mod save;
mod state;
mod twin;
mod volume;

use std::process::ExitCode;

use libtest_mimic::Trial;
use ramet_tests::suite::Suite;
use ramet_tests::{linux, trials};

/// What `cargo xtask test` runs.
const CORE: &[&str] = &[
    "twin::random_numbers_differ",
    "twin::an_interpreter_is_forked_while_it_seeds",
    "twin::secrets_are_not_inherited",
    "twin::clocks_go_on",
    "hazard::the_source_keeps_its_sessions",
    "hazard::disks_are_separate",
    "hazard::a_second_fork_leaves_the_first_child_alone",
    "state::a_process_tree_with_pipes",
    "call::everyone_learns_who_it_is",
    "save::a_running_machine_is_saved_and_restored",
    "model::known_walks",
];

fn main() -> ExitCode {
    let suite = Suite {
        command: "cargo xtask linux-tests",
        tests: tests(),
        core: CORE,
        processes: || {
            let processes = linux::processes_of(bed::bed().directory.path());
            processes.unwrap_or_default().into_iter().collect()
        },
        end: || bed::bed().end().iter().map(|pid| format!("monitor {pid}")).collect(),
    };
    suite.run()
}

fn tests() -> Vec<Trial> {
    trials! {
        agent: knows_who_it_is, exec_tells_how_it_ended, exec_gets_what_it_was_given,
            a_timeout_ends_the_whole_group, a_terminal_has_a_size, files_go_in_and_out,
            holes_stay_holes, changes_are_reported, processes_and_usage, hundreds_of_streams,
            a_large_file_up_and_down, a_slow_reader_slows_the_guest, a_server_is_dialled;
        twin: random_numbers_differ, a_deterministic_fork_repeats,
            an_interpreter_is_forked_while_it_seeds, names_are_new,
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
        volume: it_outlives_its_machines, copies_part_from_the_writer, the_writer_is_saved;
        net: frames_of_all_sizes_go_both_ways, a_link_stays_with_the_source,
            a_saved_machine_is_plugged_again, a_member_has_one_more_address;
        end: it_powers_off, it_reboots, it_panics, a_fork_while_it_panics,
            a_guest_that_does_not_come, a_full_disk_below_the_layers;
        kill: a_child_is_killed_while_it_is_made, a_source_is_killed_while_it_forks;
        model: known_walks, other_walks;
    }
}
