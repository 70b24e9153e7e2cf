//! The objects that state the expected number of pods and groups: controllers, pod groups and workloads.

use quorate_engine::basics::{Labels, ObjectKey, Version};
use quorate_engine::facts::{
    Activity, Controller, Counts, Input, PodGroup, Workload, WorkloadGroup, WorkloadSource,
};

use super::{Cluster, key, parse_owner, set};
use crate::scenario::words::Words;

impl Cluster {
    pub(super) fn controller(&mut self, words: &mut Words) -> Result<(), String> {
        let text = words.next()?;
        if words.flag("gone") {
            let controller = self.controllers.remove(&text).ok_or("no such controller")?;
            self.apply(Input::ControllerGone(controller.uid));
            return Ok(());
        }
        let owner = parse_owner(&text)?;
        let replicas = match words.next()?.as_str() {
            "no-scale" => None,
            number => Some(number.parse().map_err(|_| format!("no number: {number}"))?),
        };
        let is_lws = &*owner.kind.kind == "LeaderWorkerSet";
        let size = words.number("size")?;
        // The only kind whose scale counts groups in production, too.
        let counts = match is_lws {
            true => Counts::Groups { size, falls_whole: words.take("restart").is_none() },
            false => Counts::Pods,
        };
        let templates = words.take("template").map(|all| all.split(';').map(labels).collect());
        let controller = Controller {
            key: ObjectKey::new(words.take("namespace").unwrap_or("default".to_owned()), owner.name),
            uid: owner.uid,
            version: Version(0),
            kind: owner.kind,
            replicas,
            counts,
            owner: words.take("owner").map(|owner| parse_owner(&owner)).transpose()?,
            deleting: words.flag("deleting"),
            recreate: words.flag("recreate"),
            activity: activity(words),
            templates,
        };
        self.controllers.insert(text, controller.clone());
        self.apply(Input::Controller(controller));
        Ok(())
    }

    pub(super) fn pod_group(&mut self, words: &mut Words) -> Result<(), String> {
        let name = key(&words.next()?);
        let fact = match words.flag("gone") {
            true => None,
            false => Some(PodGroup {
                min_count: words.number("min")?.unwrap_or(1),
                falls_whole: words.flag("whole"),
                template: words
                    .take("template")
                    .map(|text| text.split_once('/').map(|(w, t)| (w.into(), t.into())).ok_or(text.clone()))
                    .transpose()?,
                controller: words.take("owner").map(|owner| parse_owner(&owner)).transpose()?,
                uid: words.take("uid").map_or_else(|| format!("uid-{}", name.name).into(), Into::into),
                deleting: words.flag("deleting"),
            }),
        };
        set(&mut self.pod_groups, &name, fact.clone());
        self.apply(Input::PodGroup(name, fact));
        Ok(())
    }

    pub(super) fn workload(&mut self, words: &mut Words) -> Result<(), String> {
        let source = if words.flag("upstream") { WorkloadSource::Upstream } else { WorkloadSource::Own };
        let name = key(&words.next()?);
        let id = (source, name.clone());
        if words.flag("gone") {
            self.workloads.remove(&id);
            self.apply(Input::Workload(source, name, None));
            return Ok(());
        }
        let group = WorkloadGroup {
            name: words.next()?.into(),
            min_count: words.number("min")?.unwrap_or(1),
            replicas: words.number("replicas")?,
        };
        let known = self.workloads.get(&id).map(|workload| workload.groups.to_vec()).unwrap_or_default();
        let others = known.into_iter().filter(|other| other.name != group.name);
        let workload = Workload {
            groups: others.chain([group.clone()]).collect(),
            uid: words.take("uid").map_or_else(|| format!("uid-{}", name.name).into(), Into::into),
            deleting: words.flag("deleting"),
            owner: words.take("owner").map(|owner| parse_owner(&owner)).transpose()?,
        };
        self.workloads.insert(id, workload.clone());
        self.apply(Input::Workload(source, name, Some(workload)));
        Ok(())
    }
}

fn activity(words: &mut Words) -> Activity {
    let says =
        [("suspended", Activity::Suspended), ("complete", Activity::Complete), ("failed", Activity::Failed)];
    says.into_iter().find(|(word, _)| words.flag(word)).map_or(Activity::Active, |(_, activity)| activity)
}

/// `app:web,tier:front`. The caller splits several sets of labels at `;`.
fn labels(text: &str) -> Labels {
    Labels::new(text.split(',').filter_map(|pair| pair.split_once(':')))
}
