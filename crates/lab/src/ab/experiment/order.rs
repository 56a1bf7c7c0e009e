// SPDX-License-Identifier: GPL-2.0-only
//! The order in which the guests of a pair are booted.

use crate::content::Content;

/// How much later than another the work in a guest may begin, in microseconds: the kernel's periodic work in the
/// background comes once in a second, or more often.
const MAX_DELAY_US: u64 = 1_000_000;

/// Which boot of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Base,
    Changed,
    /// The second boot of the base arm, for the A/A control.
    BaseAgain,
    /// A control kernel, by its index in [`crate::ab::experiment::Plan::controls`].
    ControlKernel(usize),
}

/// Returns the order of the boots in the pair with index `pair`.
///
/// Of two pairs, the second has the reverse of the first one's order: any two roles swap places, and a steady
/// drift adds the same to both. With the A/A control all six orders of three boots are used, and over six
/// pairs every role has every place twice. Which of these balanced sequences it is, `seed` draws anew for every
/// six (two) pairs, so that nothing periodic on the host meets the same role each time. Control kernels come
/// last, in every second pair first.
pub(super) fn order(pair: usize, seed: u64, aa: bool, controls: &[usize]) -> Vec<Role> {
    use Role::{Base as B, BaseAgain as K, Changed as C};
    const TWO: [&[Role]; 2] = [&[B, C], &[C, B]];
    const THREE: [&[Role]; 6] = [&[B, C, K], &[K, C, B], &[C, K, B], &[B, K, C], &[K, B, C], &[C, B, K]];
    let orders = if aa { &THREE[..] } else { &TWO[..] };
    let arms = orders[place(pair, orders.len() / 2, seed)];
    let controls = controls.iter().map(|&i| Role::ControlKernel(i));
    if pair.is_multiple_of(2) {
        arms.iter().copied().chain(controls).collect()
    } else {
        controls.rev().chain(arms.iter().copied()).collect()
    }
}

/// Returns which of `couples` couples of orders a pair has, each the reverse of the other: twice the couple, or one more.
fn place(pair: usize, couples: usize, seed: u64) -> usize {
    let (block, within) = (pair / (2 * couples), pair % (2 * couples));
    let draw = |what: &str, couple: usize| {
        let mut content = Content::default();
        content.add(format!("{seed} {block} {couple} {what}"));
        content.key()
    };
    let mut drawn: Vec<usize> = (0..couples).collect();
    drawn.sort_by_cached_key(|&couple| draw("place", couple));
    let couple = drawn[within / 2];
    let is_reversed = *draw("reversed", couple) >= *"8";
    2 * couple + (within + usize::from(is_reversed)) % 2
}

/// Draws after how long a guest begins its work, in microseconds.
///
/// Under icount, with one CPU, all boots of a kernel repeat to the instruction. What the kernel does in the background
/// then is within what is measured in all of them or in none, and neither the interval nor the A/A control could tell
/// that from an effect.
pub(super) fn delay_us(pair: usize, role: Role, seed: u64) -> u64 {
    let mut content = Content::default();
    content.add(format!("{seed} {pair} {role:?} delay"));
    let key = content.key();
    u64::from_str_radix(&key[..15], 16).map_or(0, |drawn| drawn % MAX_DELAY_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_boots_begin_their_work_at_the_same_time() {
        let roles = [Role::Base, Role::Changed, Role::BaseAgain, Role::ControlKernel(0)];
        let drawn = |seed| (0..8).flat_map(move |pair| roles.map(|role| delay_us(pair, role, seed)));
        let mut delays: Vec<u64> = drawn(1).chain(drawn(2)).collect();
        assert!(drawn(1).eq(drawn(1)));
        delays.sort_unstable();
        delays.dedup();
        assert_eq!(delays.len(), 64);
        assert!(delays[0] < MAX_DELAY_US / 8 && delays[63] > MAX_DELAY_US / 8 * 7 && delays[63] < MAX_DELAY_US);
    }

    #[test]
    fn orders_are_balanced() {
        let drawn = |seed: u64| (0..12).map(move |pair| order(pair, seed, true, &[]));
        assert!((0..9).any(|seed| !drawn(seed).eq(drawn(9))) && drawn(9).eq(drawn(9)));
        for (control, seed) in [(false, 1), (true, 1), (false, 2), (true, 2), (true, 3), (true, 4)] {
            let roles = if control { 3 } else { 2 };
            let cycle: Vec<_> = (0..6).map(|pair| order(pair, seed, control, &[])).collect();
            // Every second pair is the reverse of the one before.
            let with_more: Vec<_> = (0..6).map(|pair| order(pair, seed, control, &[1, 0])).collect();
            for two in cycle.chunks(2).chain(with_more.chunks(2)) {
                let reversed: Vec<Role> = two[0].iter().rev().copied().collect();
                assert_eq!(reversed, two[1]);
            }
            assert!(with_more.iter().all(|o| o.len() == roles + 2 && o.contains(&Role::ControlKernel(0))));
            // Every role has every place equally often.
            for place in 0..roles {
                for role in [Role::Base, Role::Changed, Role::BaseAgain].iter().take(roles) {
                    let times = cycle.iter().filter(|o| o[place] == *role).count();
                    assert_eq!(times, 6 / roles, "{role:?} in place {place}");
                }
            }
        }
    }
}
