//! Which host processors each worker gets.

/// Processors of each member, and whether no two members share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// One set for each member.
    pub processors: Vec<Vec<u32>>,
    /// Whether the sets are disjoint.
    pub disjoint: bool,
}

/// Shares `available` among `members`, giving every member what it would get in a cohort of `largest`.
///
/// The share is the same for each cohort of a plan, so that a worker alone does not have more host than a worker among
/// others: the comparison is of the device. Where there are fewer processors than members of the largest cohort, every
/// member may run on all of them.
#[must_use]
pub fn assign(available: &[u32], members: usize, largest: usize) -> Assignment {
    let share = available.len() / largest.max(members).max(1);
    if share == 0 {
        return Assignment { processors: vec![available.to_vec(); members], disjoint: members <= 1 };
    }
    Assignment {
        processors: available.chunks_exact(share).take(members).map(<[u32]>::to_vec).collect(),
        disjoint: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_alone_gets_what_a_worker_among_others_gets() {
        let available: Vec<u32> = (0..16).collect();
        let seven = assign(&available, 7, 7);
        assert_eq!(seven.processors[6], [12, 13]);
        assert_eq!(assign(&available, 1, 7).processors, [seven.processors[0].clone()]);
        assert!(seven.disjoint);
    }

    #[test]
    fn members_share_where_processors_do_not_suffice() {
        let shared = assign(&[0, 1], 3, 3);
        assert_eq!((shared.processors, shared.disjoint), (vec![vec![0, 1]; 3], false));
        let alone = assign(&[0, 1], 1, 3);
        assert_eq!((alone.processors, alone.disjoint), (vec![vec![0, 1]], true));
    }
}
