//! The suites that are shipped: each is read, and planned for the targets that it is for.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use migperf_core::plan::{Plan, PlanError, render_text};
use migperf_core::suite::{Suite, Target};
use migperf_core::trial::{Purpose, Sharing};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/suites"))
}

fn suite(file: &str) -> Suite {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    Suite::parse(&text).unwrap_or_else(|errors| panic!("{file}:\n{errors}"))
}

#[test]
fn every_suite_has_a_plan_for_each_of_its_targets() {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let suite = suite(&file);
        assert_eq!(file, format!("{}.toml", suite.name), "a suite is named as its file");
        for target in Target::ALL {
            let plan = Plan::expand(&suite, *target);
            if *target == Target::Gpu || suite.name == "quick" {
                let plan = plan.unwrap_or_else(|error| panic!("{file} on {target}: {error}"));
                assert_eq!(plan.warnings, Vec::<String>::new(), "{file} on {target}");
                assert!(!render_text(&plan).is_empty());
            } else {
                assert!(matches!(plan, Err(PlanError::WrongTarget { .. } | PlanError::Nothing { .. })), "{file}");
            }
        }
        seen.insert(file);
    }
    let expected =
        ["co-load-resnet18.toml", "migperf-infer.toml", "migperf-mps-vs-mig.toml", "migperf-train.toml", "quick.toml"];
    assert_eq!(seen, expected.map(str::to_owned).into());
}

#[test]
fn the_first_look_takes_less_than_two_minutes_on_a_cpu() {
    let plan = Plan::expand(&suite("quick.toml"), Target::Cpu).unwrap();
    assert!(plan.estimate().total.0 < Duration::from_secs(120), "{}", plan.estimate().total);
    assert!(plan.cells.iter().all(|cell| cell.members.len() <= 2), "two cores serve two workers");
    assert!(!plan.left_out.is_empty());
}

#[test]
fn the_article_s_experiment_is_whole() {
    let plan = Plan::expand(&suite("co-load-resnet18.toml"), Target::Gpu).unwrap();
    let asked: BTreeSet<(String, usize)> =
        plan.cells.iter().map(|cell| (cell.sharing.to_string(), cell.members.len())).collect();
    for (sharing, counts) in
        [("exclusive", &[1][..]), ("time-slice", &[1, 4, 7]), ("mps", &[1, 4, 7]), ("mps@14%", &[1, 7])]
    {
        for count in counts {
            assert!(asked.contains(&(sharing.to_owned(), *count)), "{sharing} {count}");
        }
    }
    assert_eq!(plan.repeats, 3);
    let mixed = plan.cells.iter().filter(|cell| cell.groups().iter().map(|(_, group)| group.len()).eq([1, 6]));
    assert_eq!(mixed.count(), 3);
}

#[test]
fn the_sweeps_change_the_layout_once_for_each_profile() {
    for (file, layouts) in [("migperf-infer.toml", 5), ("migperf-train.toml", 5)] {
        let plan = Plan::expand(&suite(file), Target::Gpu).unwrap();
        assert_eq!(plan.layouts().len(), layouts, "{file}");
        assert!(plan.cells.iter().all(|cell| matches!(cell.sharing, Sharing::Mig { .. })));
        assert!(plan.trials.iter().all(|trial| trial.purpose == Purpose::Requested));
    }
}

#[test]
fn the_documented_examples_are_suites() {
    let pages = ["docs/suite.md", "README.md"].map(|page| folder().join("../..").join(page));
    let pages = pages.map(|page| std::fs::read_to_string(page).unwrap());
    let examples: Vec<&str> = pages
        .iter()
        .flat_map(|page| page.split("```toml\n").skip(1))
        .map(|rest| rest.split_once("```").map_or(rest, |(example, _)| example))
        .collect();
    assert!(examples.len() >= pages.len());
    for example in examples {
        let suite = Suite::parse(example).unwrap_or_else(|errors| panic!("{errors}\n{example}"));
        Plan::expand(&suite, Target::Gpu).unwrap();
    }
}

#[test]
fn the_documented_keys_are_those_that_are_read() {
    let page = std::fs::read_to_string(folder().join("../../docs/suite.md")).unwrap();
    let unknown = "version = 1\nname = \"x\"\nnonsense = 1\n[defaults]\nnonsense = 1\n[objective]\nnonsense = 1\n\
                   [[trial]]\nnonsense = 1\nsharing = { nonsense = 1 }\nworkload = { nonsense = 1 }";
    let errors = Suite::parse(unknown).unwrap_err();
    let mut lists = 0;
    for error in errors.as_slice() {
        let migperf_core::suite::Problem::UnknownKey { known, place, .. } = &error.problem else { continue };
        lists += 1;
        for key in *known {
            let written = [format!("`{key}`"), format!("{key} = "), format!("[{key}]")];
            assert!(written.iter().any(|text| page.contains(text)), "{key} of {place} is not documented");
        }
    }
    assert_eq!(lists, 6);
}
