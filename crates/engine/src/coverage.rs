//! Hashes of what a budget covers: FNV-1a, the same in every process and every release. The standard hasher does not
//! guarantee this, and neither do the derived `Hash` of the facts: tests compare the hashes with fixed values.

use std::hash::{Hash as _, Hasher as _};

use fnv::FnvHasher;

use crate::facts::{Covers, Rules, Units};

/// What a budget covers, as a hash: its UID, pods, operations and whether it only observes. The leader opens a budget
/// for one coverage. If only the numbers of the budget change, the replicas need not acknowledge it again, since a commit
/// checks the generation. A new UID is a new budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coverage(pub u64);

impl Coverage {
    /// The coverage of an invalid budget. It denies everything, so it need not be opened.
    pub(crate) const INVALID: Self = Self(0);

    /// The coverage of a budget with these rules.
    pub fn of(uid: &str, rules: &Rules) -> Self {
        let mut hash = FnvHasher::default();
        uid.hash(&mut hash);
        hash_covers(&rules.covers, &mut hash);
        rules.operations.hash(&mut hash);
        rules.observe.hash(&mut hash);
        Self(hash.finish())
    }

    /// A coverage of the UID alone, to show why a budget that covers other pods must be opened again.
    #[cfg(feature = "mutations")]
    pub(crate) fn of_uid(uid: &str) -> Self {
        let mut hash = FnvHasher::default();
        uid.hash(&mut hash);
        Self(hash.finish())
    }
}

fn hash_covers(covers: &Covers, mut hash: &mut FnvHasher) {
    match covers {
        Covers::Selector(selector) => {
            let mut requirements: Vec<_> = selector.0.iter().collect();
            requirements.sort_by(|a, b| a.key.cmp(&b.key));
            (0u8, requirements).hash(&mut hash);
        }
        Covers::Target(kind, name) => (1u8, kind, name).hash(&mut hash),
    }
}

/// Hash of what the memory of a budget depends on: the pods that it covers, and how it forms units from them. If this
/// changes, the memory no longer applies.
pub fn memory_key(rules: &Rules) -> u64 {
    let mut hash = FnvHasher::default();
    hash_covers(&rules.covers, &mut hash);
    // The minimum number of healthy pods in a group does not change which groups exist.
    match &rules.units {
        Units::Pods => 0u8.hash(&mut hash),
        Units::Workload => 1u8.hash(&mut hash),
        Units::Label { key, .. } => (2u8, key).hash(&mut hash),
        Units::Owner { kind, .. } => (3u8, kind).hash(&mut hash),
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::{Coverage, memory_key};
    use crate::basics::{GroupKind, Quantity};
    use crate::facts::{Covers, Operation, Operations, Rules, Units};
    use crate::selector::{Operator, Requirement, Selector};

    const UID: &str = "5f1d0c52-7f0e-4a53-9d2e-0d5b9d3b1a01";

    fn rules(covers: Covers) -> Rules {
        Rules { min_available: Some(Quantity::Count(2)), ..Rules::new(covers) }
    }

    fn selector(requirements: &[(&str, Operator)]) -> Covers {
        let requirement = |(key, operator): &(&str, Operator)| Requirement {
            key: (*key).into(),
            operator: operator.clone(),
        };
        Covers::Selector(Selector(requirements.iter().map(requirement).collect()))
    }

    fn values(values: &[&str]) -> Box<[crate::basics::Text]> {
        values.iter().map(|value| (*value).into()).collect()
    }

    /// These values are stored in the status of budgets in clusters. Another value for the same rules would close every
    /// budget of a cluster when the server is upgraded, and again when it is rolled back.
    #[test]
    fn coverage_is_the_same_in_every_release() {
        let app = || ("app", Operator::In(values(&["llm"])));
        let tier = || ("tier", Operator::NotIn(values(&["dev", "test"])));
        let with = |operations: &[Operation]| Rules {
            operations: Operations::of(operations),
            ..rules(selector(&[app()]))
        };
        use Operation::{Delete, Evict, Relabel, Resize, Update};
        let target = Covers::Target(GroupKind::new("apps", "Deployment"), "web".into());
        let core = Covers::Target(GroupKind::new("", "ReplicationController"), "web".into());
        let golden: [(&str, Rules, u64); 17] = [
            ("everything", rules(selector(&[])), 0xcdc3_a07f_f8f1_8f60),
            ("a label", rules(selector(&[app()])), 0x1234_99ba_e5da_85dc),
            (
                "one of several values",
                rules(selector(&[("app", Operator::In(values(&["a", "b"])))])),
                0xab49_7fff_30e4_c918,
            ),
            ("none of several values", rules(selector(&[tier()])), 0xd88a_cc5c_f6aa_e786),
            ("a label that is there", rules(selector(&[("gpu", Operator::Exists)])), 0xf518_3e3b_2ceb_8ce0),
            (
                "a label that is absent",
                rules(selector(&[("canary", Operator::Absent)])),
                0xb784_9de1_6ce7_164f,
            ),
            ("several requirements", rules(selector(&[app(), tier()])), 0x224a_6ab2_586d_5270),
            ("the same in another order", rules(selector(&[tier(), app()])), 0x224a_6ab2_586d_5270),
            ("a Deployment", rules(target), 0x4df2_4164_efb9_85ab),
            ("a kind of the core group", rules(core), 0x931d_8bae_42f4_ad1a),
            ("deletes too", with(&[Evict, Delete]), 0x123b_65ba_e5e0_4c2e),
            ("updates too", with(&[Evict, Delete, Update]), 0x122d_cdba_e5d4_bf8a),
            ("resizes too", with(&[Evict, Delete, Update, Resize]), 0x1212_9dba_e5bd_a642),
            ("evictions and relabels", with(&[Evict, Relabel]), 0x11fe_39ba_e5ac_534c),
            ("every operation", with(&Operation::ALL), 0x11dc_3dba_e58f_73b2),
            (
                "one that observes",
                Rules { observe: true, ..rules(selector(&[app()])) },
                0x1234_9aba_e5da_878f,
            ),
            (
                "other numbers",
                Rules { min_available: None, ..rules(selector(&[app()])) },
                0x1234_99ba_e5da_85dc,
            ),
        ];
        let found: Vec<_> = golden
            .iter()
            .map(|(what, rules, _)| (*what, format!("{:#018x}", Coverage::of(UID, rules).0)))
            .collect();
        let wanted: Vec<_> =
            golden.iter().map(|(what, _, value)| (*what, format!("{value:#018x}"))).collect();
        assert_eq!(found, wanted);
    }

    /// These values are stored beside the memory of budgets. Another value would let a server forget the sources whose pods
    /// are gone, when it is upgraded and when it is rolled back.
    #[test]
    fn memory_keys_are_the_same_in_every_release() {
        let by = |units| Rules { units, ..rules(selector(&[("app", Operator::In(values(&["llm"])))])) };
        let shard = |min_ready| Units::Label { key: "shard".into(), min_ready };
        let owner = Units::Owner { kind: GroupKind::new("batch", "Job"), min_ready: None };
        let golden: [(&str, Rules, u64); 5] = [
            ("pods", by(Units::Pods), 0xf163_08e8_d450_4ef1),
            ("groups of the Workload API", by(Units::Workload), 0xf163_07e8_d450_4d3e),
            ("groups by label", by(shard(None)), 0xa3f6_d74e_4b04_3dbe),
            ("the same with another minimum", by(shard(Some(2))), 0xa3f6_d74e_4b04_3dbe),
            ("groups by owner", by(owner), 0xb80f_b03d_fdad_e241),
        ];
        let found: Vec<_> =
            golden.iter().map(|(what, rules, _)| (*what, format!("{:#018x}", memory_key(rules)))).collect();
        let wanted: Vec<_> =
            golden.iter().map(|(what, _, value)| (*what, format!("{value:#018x}"))).collect();
        assert_eq!(found, wanted);
    }
}
