//! Which existing MIG instances serve a list of wanted profiles.

use crate::ids::MigUuid;
use crate::mig::profile::Profile;

/// A MIG device that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingInstance {
    /// Its identity until it is destroyed.
    pub uuid: MigUuid,
    /// Its profile, as the device names it.
    pub profile: Profile,
}

/// Why existing instances can't serve a list of profiles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Too few, or none, of a profile.
    #[error("{profile}: {wanted} wanted, {found} exist (there are: {})", listed(.existing))]
    Missing {
        /// The profile as it was written.
        profile: Profile,
        /// How many are wanted, under this name or another that fits the same instances.
        wanted: usize,
        /// How many there are.
        found: usize,
        /// Every instance there is.
        existing: Vec<Profile>,
    },
    /// A portable name fits instances of several profiles.
    #[error("{profile} may be any of {}: write the one that is meant", listed(.choices))]
    Ambiguous {
        /// The profile as it was written.
        profile: Profile,
        /// The profiles that it fits, each once.
        choices: Vec<Profile>,
    },
}

fn listed(profiles: &[Profile]) -> String {
    if profiles.is_empty() {
        return "none".to_owned();
    }
    profiles.iter().map(Profile::to_string).collect::<Vec<_>>().join(", ")
}

/// For each wanted profile the index of an instance in `available`, each instance taken once, the first that fits.
///
/// # Errors
/// If a name fits instances of different profiles, or there are too few.
pub fn resolve(wanted: &[Profile], available: &[ExistingInstance]) -> Result<Vec<usize>, ResolveError> {
    let mut taken = vec![false; available.len()];
    let mut chosen = Vec::with_capacity(wanted.len());
    for profile in wanted {
        let fitting: Vec<usize> = (0..available.len()).filter(|at| profile.matches(&available[*at].profile)).collect();
        let mut choices: Vec<Profile> = fitting.iter().map(|at| available[*at].profile.clone()).collect();
        choices.sort();
        choices.dedup();
        if choices.len() > 1 {
            return Err(ResolveError::Ambiguous { profile: profile.clone(), choices });
        }
        let Some(free) = fitting.iter().copied().find(|at| !taken[*at]) else {
            return Err(ResolveError::Missing {
                profile: profile.clone(),
                wanted: match choices.first() {
                    Some(only) => wanted.iter().filter(|other| other.matches(only)).count(),
                    None => wanted.iter().filter(|other| *other == profile).count(),
                },
                found: fitting.len(),
                existing: available.iter().map(|instance| instance.profile.clone()).collect(),
            });
        };
        taken[free] = true;
        chosen.push(free);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::layout::Layout;

    fn check(wanted: &str, existing: &[&str], expected: Result<&[usize], &str>) {
        let available: Vec<ExistingInstance> = existing
            .iter()
            .enumerate()
            .map(|(index, profile)| ExistingInstance {
                uuid: format!("MIG-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d{index:02x}").parse().unwrap(),
                profile: profile.parse().unwrap(),
            })
            .collect();
        let wanted: Layout = wanted.parse().unwrap();
        let answer = resolve(&wanted.members(), &available).map_err(|error| error.to_string());
        assert_eq!(answer.as_deref().map_err(String::as_str), expected, "{existing:?}");
    }

    #[test]
    fn wanted_profiles_take_existing_instances() {
        check("1g", &["3g.71gb", "1g.18gb", "1g.18gb"], Ok(&[1]));
        check("1g+3g+1g.18gb", &["3g.71gb", "1g.18gb", "1g.18gb"], Ok(&[1, 0, 2]));
        check("1g", &["1g.18gb+me", "1g.18gb"], Ok(&[1]));
        check("1c.3g", &["3g.71gb", "1c.3g.71gb"], Ok(&[1]));
    }

    #[test]
    fn what_is_missing_is_named_with_what_exists() {
        check("3x1g", &["1g.18gb", "2g.35gb"], Err("1g: 3 wanted, 1 exist (there are: 1g.18gb, 2g.35gb)"));
        check("7g", &[], Err("7g: 1 wanted, 0 exist (there are: none)"));
        // Two names for one instance.
        check("1g+1g.18gb", &["1g.18gb"], Err("1g.18gb: 2 wanted, 1 exist (there are: 1g.18gb)"));
    }

    #[test]
    fn an_ambiguous_name_lists_the_choices() {
        check("1g", &["1g.35gb", "1g.18gb"], Err("1g may be any of 1g.18gb, 1g.35gb: write the one that is meant"));
        check("1g.35gb", &["1g.35gb", "1g.18gb"], Ok(&[0]));
    }
}
