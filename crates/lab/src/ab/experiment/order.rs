// SPDX-License-Identifier: GPL-2.0-only
//! The order in which the guests of a pair are booted.

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
/// Two arms alternate: AB BA AB BA. With the A/A control all six orders of three boots are used, every second
/// one the reverse of the one before. So any two roles swap places between an even pair and the next, and a
/// steady drift adds the same to both over two pairs. Over six pairs every role has every place twice.
/// Control kernels come last, in every second pair first.
pub(super) fn order(pair: usize, aa: bool, controls: &[usize]) -> Vec<Role> {
    use Role::{Base as B, BaseAgain as K, Changed as C};
    const TWO: [&[Role]; 2] = [&[B, C], &[C, B]];
    const THREE: [&[Role]; 6] = [&[B, C, K], &[K, C, B], &[C, K, B], &[B, K, C], &[K, B, C], &[C, B, K]];
    let arms = if aa { THREE[pair % THREE.len()] } else { TWO[pair % TWO.len()] };
    let controls = controls.iter().map(|&i| Role::ControlKernel(i));
    if pair.is_multiple_of(2) {
        arms.iter().copied().chain(controls).collect()
    } else {
        controls.rev().chain(arms.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_balanced() {
        for control in [false, true] {
            let roles = if control { 3 } else { 2 };
            let cycle: Vec<_> = (0..6).map(|pair| order(pair, control, &[])).collect();
            // Every second pair is the reverse of the one before.
            let with_more: Vec<_> = (0..6).map(|pair| order(pair, control, &[1, 0])).collect();
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
