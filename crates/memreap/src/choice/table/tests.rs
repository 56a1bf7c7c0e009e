// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;

use super::*;

const VMSTAT: &str = "nr_mapped 10\nnr_shmem 90\nnr_shmem_pmdmapped 0\npgalloc_dma 1\n\
    pgalloc_dma32 20\npgalloc_normal 300\npgalloc_movable 4000\npgfault 7\n";

fn constants() -> SystemConstants {
    SystemConstants {
        page_bytes: 4096,
        process_error_pages: 64,
        error_pages_per_thread: 0,
        system_error_pages: 5,
        pid_max: 32768,
        random_addresses: true,
        tells_shared: true,
    }
}

#[test]
fn zones_are_added_up() {
    let counters = Counters::parse(VMSTAT.as_bytes(), &constants()).unwrap();
    let expected = Counters {
        allocated_bytes: 4321 * 4096,
        faults: 7,
        mapped_bytes: 15 * 4096,
        mapped_bytes_per_fault: MAPPED_BYTES_PER_FAULT,
    };
    assert_eq!(counters, expected);
    let huge = VMSTAT.replace("nr_shmem_pmdmapped 0", "nr_shmem_pmdmapped 1");
    assert_eq!(
        Counters::parse(huge.as_bytes(), &constants()).unwrap().mapped_bytes_per_fault,
        MAPPED_BYTES_PER_HUGE_FAULT
    );
    let little = VMSTAT.replace("nr_shmem 90", "nr_shmem 3");
    assert_eq!(Counters::parse(little.as_bytes(), &constants()).unwrap().mapped_bytes, 8 * 4096);
    for wrong in [
        "",
        "nr_mapped 1\nnr_shmem 1\n",
        "nr_mapped 1\npgfault 1\n",
        "nr_shmem 1\npgfault 1\n",
        "nr_mapped 1\nnr_shmem 1\npgfault -1\n",
    ] {
        assert_eq!(Counters::parse(wrong.as_bytes(), &constants()), None, "{wrong}");
    }
}

#[test]
fn counters_lag_more_on_more_cpus() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let root = Root::at(dir.path());
    write("sys/devices/system/cpu/possible", "0-63\n");
    write("proc/sys/kernel/osrelease", "6.12.1\n");
    write("proc/sys/kernel/pid_max", "4194304\n");
    let found = SystemConstants::find(&root);
    assert_eq!((found.counter_error(1000), found.pid_max), (64 * 128 * found.page_bytes, 4_194_304));
    write("proc/sys/kernel/osrelease", "6.1.0\n");
    assert_eq!(SystemConstants::find(&root).counter_error(1000), (64 * 128 + 64_000) * found.page_bytes);
}

#[test]
fn an_id_that_may_be_anothers_is_read_again() {
    let mut table = Table::new(3);
    for pid in [5, 2, 9, 2, 7] {
        table.add(Pid::new(pid).unwrap());
    }
    let ids = |table: &Table| table.entries().iter().map(|e| e.pid.get()).collect::<Vec<_>>();
    assert_eq!((ids(&table), table.not_stored), (vec![2, 5, 9], 1));
    let at = Counters { allocated_bytes: 0, faults: 0, mapped_bytes: 0, mapped_bytes_per_fault: 1 };
    for index in 0..3 {
        table.get(index).reading = Some(Reading::with(1, 1, at));
    }
    table.invalidate(|pid| pid > 4);
    let read: Vec<_> = table.entries().iter().map(|e| e.reading.is_some()).collect();
    assert_eq!(read, [true, false, false]);
    table.get(1).gone = true;
    table.remove_gone();
    assert_eq!(ids(&table), [2, 9]);
    assert_eq!(table.find(Pid::new(9).unwrap()), Some(1));
}

proptest! {
    /// Processes that allocate, swap out and map as they like, each step counted as the kernel counts.
    #[test]
    fn the_bound_holds_whatever_happens(
        start in (0_u64..1000, 0_u64..1000),
        steps in prop::collection::vec((0_u8..5, 0_u64..300), 0..60),
    ) {
        const PAGE: u64 = 4096;
        let mut counters =
            Counters { allocated_bytes: 0, faults: 0, mapped_bytes: start.1 * PAGE, mapped_bytes_per_fault: MAPPED_BYTES_PER_FAULT };
        let (mut anon, mut mapped, mut elsewhere) = (start.0 * PAGE, start.1 * PAGE, 0_u64);
        let read = Reading::with(anon, mapped, counters);
        for (what, pages) in steps {
            let bytes = pages * PAGE;
            match what {
                // Anonymous memory, here or elsewhere.
                0 => (anon, counters.allocated_bytes) = (anon + bytes, counters.allocated_bytes + bytes),
                1 => counters.allocated_bytes += bytes,
                2 => anon = anon.saturating_sub(bytes),
                // What others have mapped is mapped here instead.
                3 => {
                    counters.faults += pages.div_ceil(16);
                    elsewhere = elsewhere.saturating_sub(bytes);
                    mapped += bytes;
                }
                _ => elsewhere += bytes,
            }
            counters.mapped_bytes = mapped + elsewhere;
            prop_assert!(read.upper_bound(&counters) >= anon + mapped);
        }
    }
}
