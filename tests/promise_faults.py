"""Which fault threatens each promise of SEMANTICS.md most, and which of its tests injects it; for docs/promises.md."""

from __future__ import annotations

TROUBLES, S3_FAULTS = "tests/s3/test_troubles.py", "tests/s3/test_faults.py"
LABELS, DISKS, MODEL = "tests/crash/test_labels.py", "tests/disks/test_failing_disks.py", "tests/model/test_model.py"
UNMOUNT, SELECTION = "tests/fuse/test_unmount_while_open.py", "tests/fuse/test_selection_options.py"
PRODUCERS, MEMBERS = "tests/extensions/producers/test_producers.py", "tests/s3/test_members.py"
FILL, NAMED = "tests/extensions/fill/test_fill.py", "tests/fuse/test_named_generations.py"
ALL = "(all)"

FAULTS = {
    1: (
        "a response body that is cut short, damaged, or of the wrong length",
        S3_FAULTS,
        "test_faults_of_single_objects_have_nothing_wrong_admitted",
    ),
    2: (
        "an object that changes between its parts, or while it is open",
        S3_FAULTS,
        "test_an_object_that_changes_between_its_parts_is_no_mix",
    ),
    3: (
        "a remote that refuses, throttles, or is away for minutes",
        S3_FAULTS,
        "test_a_fault_of_the_whole_remote_is_waited_out",
    ),
    4: (
        "another user, or a program that tries to write",
        "tests/fuse/test_reading.py",
        "test_a_shared_mapping_cannot_be_written",
    ),
    5: ("any order of fetches, evictions, misses and crashes", MODEL, ALL),
    6: ("any order of listings by several processes", MODEL, ALL),
    7: ("a listing that takes minutes", TROUBLES, "test_a_mount_returns_while_a_long_listing_goes_on"),
    8: (
        "many readers that open its large files",
        "tests/fuse/test_resource_limits.py",
        "test_a_large_virtual_file_is_shared_by_those_that_open_it_and_too_many_small_ones_give_enfile",
    ),
    9: ("the death of the daemon", "tests/crash/test_trust.py", "test_a_dead_mount_is_detected_at_once"),
    10: (
        "a daemon that is killed while files are open",
        UNMOUNT,
        "test_after_sigkill_every_new_open_fails_and_open_files_outlive_the_next_mount",
    ),
    11: (
        "an unmount while files are open and mapped",
        UNMOUNT,
        "test_after_a_lazy_umount_open_and_mapped_files_and_an_open_folder_stay_readable",
    ),
    12: (
        "arrivals, replacements and evictions while a program watches",
        "tests/fuse/test_inotify.py",
        "test_inotify_reports_reads_and_no_changes",
    ),
    13: ("system calls that a file system may refuse", "tests/fuse/test_reading.py", "test_no_extended_attributes"),
    14: ("an outage in the middle of filling", TROUBLES, "test_an_outage_in_the_middle_of_filling_is_waited_out"),
    15: ("a listing that takes minutes", TROUBLES, "test_a_mount_returns_while_a_long_listing_goes_on"),
    16: (
        "a listing page that comes twice, or out of order",
        S3_FAULTS,
        "test_a_listing_with_a_bad_page_loses_no_file",
    ),
    17: (
        "kills of the daemon, its workers, the server and readers",
        "tests/test_soak.py",
        "test_readers_see_no_fault_but_those_that_are_due",
    ),
    18: (
        "a disk that is smaller than the cache",
        DISKS,
        "test_a_disk_that_is_smaller_than_the_cache_rotates_and_status_says_so",
    ),
    19: ("any order of misses, opens and evictions", MODEL, ALL),
    20: ("a file that always fails", "tests/fuse/test_prefetch.py", "test_a_file_that_fails_does_not_stop_the_others"),
    21: (
        "readers whose processes the daemon cannot see",
        "tests/fuse/test_rotation.py",
        "test_what_readers_of_another_pid_namespace_list_stays_for_hold_idle",
    ),
    22: (
        "a reader that lists again and again",
        "tests/fuse/test_rotation.py",
        "test_rotation_never_and_always",
    ),
    23: ("more frozen files than the cache can hold", SELECTION, "test_what_cannot_be_selected_is_refused"),
    24: ("a file of a group that fails", SELECTION, "test_a_file_that_fails_keeps_its_group_unlisted"),
    25: ("a number larger than the cache can hold", SELECTION, "test_what_cannot_be_selected_is_refused"),
    26: (
        "a remote that gains files",
        "tests/unit/test_pass_order.py",
        "test_a_growing_catalog_moves_no_file_to_another_node",
    ),
    27: ("a restart in the middle of a day", "tests/unit/test_budget.py", "test_the_count_survives_a_restart"),
    28: ("a full disk", DISKS, "test_on_a_full_disk_misses_and_smaller_sizes_make_room_and_with_room_rotation_goes_on"),
    29: (
        "SIGKILL at each step, a disk error, a power loss",
        LABELS,
        "test_after_a_kill_the_next_mount_is_consistent",
    ),
    30: ("a second daemon", "tests/fuse/test_lifecycle.py", "test_a_second_daemon_on_a_cache_is_refused"),
    31: (
        "a hostile bucket",
        "tests/remote/test_hostile_listings.py",
        "test_what_a_hostile_listing_names_can_be_a_file_or_is_skipped",
    ),
    32: (
        "errors and process lists, which contain arguments",
        "tests/cli/test_secrets.py",
        "test_an_error_shows_no_secret",
    ),
    33: ("wrong bytes from the server", S3_FAULTS, "test_faults_of_single_objects_have_nothing_wrong_admitted"),
    34: (
        "a change of the rate during fetches",
        "tests/unit/test_rate_limits.py",
        "test_a_change_of_the_rate_applies_at_once",
    ),
    35: ("broken archives", MEMBERS, "test_broken_shards_and_odd_names_are_reported_and_the_others_served"),
    36: (
        "an archive that changes while it is read",
        "tests/extensions/members/test_members.py",
        "test_an_archive_that_changes_while_it_is_read_is_read_again",
    ),
    37: (
        "an archive that cannot be read",
        "tests/extensions/members/test_members.py",
        "test_an_unreadable_archive_is_skipped_and_retried_by_the_next_listing",
    ),
    38: ("a function that crashes", MEMBERS, "test_a_function_that_crashes_does_not_end_the_daemon"),
    39: (
        "a result much larger than the others",
        PRODUCERS,
        "test_a_file_much_larger_than_the_others_is_produced_at_most_twice",
    ),
    40: (
        "a function that fails, hangs, or leaves processes behind",
        PRODUCERS,
        "test_producer_failures_are_logged_and_skipped",
    ),
    41: ("workers that make samples in any order", PRODUCERS, "test_samples_depend_only_on_seed_and_number"),
    42: ("a function that writes to other places", PRODUCERS, "test_producer_failures_are_logged_and_skipped"),
    43: ("a daemon that is killed while it links files", FILL, "test_after_a_fault_the_next_start_puts_right"),
    44: ("a reader that is killed", FILL, "test_a_held_generation_stays_whole_until_its_reader_is_killed"),
    45: ("a kernel without inotify", FILL, "test_without_inotify_what_is_shown_counts_as_read"),
    46: (
        "a node that is killed while it serves",
        "tests/extensions/peers/test_nodes.py",
        "test_a_node_that_is_killed_while_it_serves_harms_no_reader",
    ),
    47: (
        "a daemon that is killed in the middle of a pass",
        "tests/extensions/exact/test_exact.py",
        "test_a_killed_mount_goes_on_with_the_next_part",
    ),
    48: (
        "a remote that has other files",
        "tests/extensions/exact/test_exact.py",
        "test_a_run_goes_on_from_a_saved_position_on_another_machine",
    ),
    49: (
        "readers that cannot be told apart",
        NAMED,
        "test_an_open_folder_holds_its_generation_for_processes_of_other_pid_namespaces",
    ),
    50: (
        "a rank that comes late, and one that is killed",
        NAMED,
        "test_the_next_generation_is_held_until_the_process_asks_again_or_is_killed",
    ),
}
"""By number of the promise: the fault, the test file, and the test (or ALL of them)."""
