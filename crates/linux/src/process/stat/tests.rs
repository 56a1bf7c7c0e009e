// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;

use super::*;

fn parse(bytes: &[u8]) -> Result<Stat> {
    Stat::parse(Path::new("/proc/1/stat"), bytes)
}

/// The text for a name and the 50 fields behind it.
fn text(comm: &[u8], fields: &[String]) -> Vec<u8> {
    [b"77 (", comm, b") ", fields.join(" ").as_bytes(), b"\n"].concat()
}

/// Fields with a value of their own each, so that one taken for another shows.
fn fields() -> Vec<String> {
    let mut fields: Vec<_> = (3..=52).map(|i: u32| (1000 + i).to_string()).collect();
    fields[0] = "S".into();
    fields[19 - 3] = "-7".into();
    fields
}

#[test]
fn each_field_is_where_proc_5_says() {
    let stat = parse(&text(b"a", &fields())).unwrap();
    let expected = Stat {
        comm: Comm::new(b"a").unwrap(),
        state: State::Other(b'S'),
        ppid: Pid::new(1004),
        flags: 1009,
        majflt: 1012,
        nice: -7,
        start_time: 1022,
        policy: 1041,
        arg_start: 1048,
    };
    assert_eq!(stat, expected);
}

#[test]
fn a_process_without_a_parent_has_none() {
    let mut f = fields();
    f[1] = "0".into();
    assert_eq!(parse(&text(b"a", &f)).unwrap().ppid, None);
    f[1] = "-1".into();
    assert!(parse(&text(b"a", &f)).is_err());
}

#[test]
fn the_flag_tells_kernel_threads() {
    let mut f = fields();
    f[9 - 3] = "2129984".into();
    assert!(parse(&text(b"kthreadd", &f)).unwrap().is_kernel_thread());
    f[9 - 3] = "4194304".into();
    assert!(!parse(&text(b"cat", &f)).unwrap().is_kernel_thread());
}

#[test]
fn a_state_is_a_letter() {
    let mut f = fields();
    for (letter, state) in [("Z", State::Zombie), ("q", State::Other(b'q'))] {
        f[0] = letter.into();
        assert_eq!(parse(&text(b"a", &f)).unwrap().state, state);
    }
    for wrong in ["SS", "", "\x1b", "1"] {
        f[0] = wrong.into();
        assert!(parse(&text(b"a", &f)).is_err(), "{wrong:?}");
    }
}

#[test]
fn numbers_out_of_range_are_errors() {
    for (field, wrong) in [(9, "-1"), (9, "4294967296"), (12, "18446744073709551616"), (22, ""), (41, "+1")] {
        let mut f = fields();
        f[field - 3] = wrong.into();
        assert!(parse(&text(b"a", &f)).is_err(), "{field}: {wrong:?}");
    }
    for wrong in ["", "\n", ")(\n", "1 (a\n", "1 (a) S\n", "1 (a)S 1\n"] {
        assert!(parse(wrong.as_bytes()).is_err(), "{wrong:?}");
    }
}

prop_compose! {
    fn any_name()(name in prop_oneof![
        prop::collection::vec(1u8.., 0..=15),
        // What could be taken for the end of the name.
        prop::collection::vec(prop::sample::select(b"() \n01SR-".as_slice()), 0..=15),
    ]) -> Vec<u8> { name }
}

proptest! {
    #[test]
    fn any_name_and_any_numbers_survive(
        comm in any_name(),
        [majflt, start_time] in any::<[u64; 2]>(),
        [flags, policy] in any::<[u32; 2]>(),
    ) {
        let mut f = fields();
        for (field, value) in [
            (9, flags.to_string()), (12, majflt.to_string()),
            (22, start_time.to_string()), (41, policy.to_string()),
        ] {
            f[field - 3] = value;
        }
        let text = text(&comm, &f);
        let stat = parse(&text).unwrap();
        prop_assert_eq!(stat.comm.as_bytes(), &comm[..]);
        prop_assert_eq!((stat.majflt, stat.start_time), (majflt, start_time));
        prop_assert_eq!((stat.flags, stat.policy), (flags, policy));
        for cut in 0..text.len() {
            prop_assert!(parse(&text[..cut]).is_err(), "cut at {}", cut);
        }
    }

    #[test]
    fn shuffled_bytes_do_no_harm(bytes in Just(text(b"a)(b", &fields())).prop_shuffle()) {
        let _ = parse(&bytes);
    }
}
