// SPDX-License-Identifier: GPL-2.0-only
//! In which order the guests of a pair are booted.

/// Which of a pair's boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Base,
    Changed,
    /// The base arm again.
    BaseAgain,
    /// A kernel beside the two, by its place in [`Plan::controls`].
    ControlKernel(usize),
}

/// The order of the boots within a pair.
///
/// Two arms alternate: AB BA AB BA. With the control all six orders of three take turns, each
/// second one the reverse of the one before. Either way any two roles swap places from each
/// even pair to the next, so that over two pairs a steady drift adds the same to both, and over
/// six pairs every role has every place twice. Kernels beside these come last, and in each second
/// pair first.
pub(super) fn order(pair: usize, control: bool, beside: &[usize]) -> Vec<Role> {
    use Role::{Base as B, BaseAgain as K, Changed as C};
    const TWO: [&[Role]; 2] = [&[B, C], &[C, B]];
    const THREE: [&[Role]; 6] = [&[B, C, K], &[K, C, B], &[C, K, B], &[B, K, C], &[K, B, C], &[C, B, K]];
    let arms = if control { THREE[pair % THREE.len()] } else { TWO[pair % TWO.len()] };
    let beside = beside.iter().map(|&i| Role::ControlKernel(i));
    if pair.is_multiple_of(2) {
        arms.iter().copied().chain(beside).collect()
    } else {
        beside.rev().chain(arms.iter().copied()).collect()
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
            // Each second pair is the reverse of the one before.
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
