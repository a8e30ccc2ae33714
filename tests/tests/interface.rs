//! The interface: its golden description, every method and property over a peer-to-peer connection, and what is refused.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use migperf_core::job::{Check, PlanAnswer};
use migperf_core::layouts::{LayoutPlan, Layouts};
use migperf_dbus::Keyed;
use migperf_dbus::document::{self, LONGEST_REPORT, LONGEST_SUITE};
use migperf_dbus::error::Error;
use migperf_dbus::names::{self, filter, job as key, submit};
use migperf_dbus::proxy::{GpuProxy, JobProxy};
use migperf_tests::paced::Stage;
use migperf_tests::{Daemon, number, text};
use zbus::fdo::{IntrospectableProxy, ObjectManagerProxy};
use zbus::names::InterfaceName;

const LIMIT: Duration = Duration::from_secs(60);
const SUITE: &str = r#"
version = 1
name = "interface"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "500ms"
longest-window = "500ms"
minimum-batches = 5
[[trial]]
sharing = "exclusive"
workload = { model = "empty", task = "infer", batch-size = 1 }
"#;

fn stage() -> Stage {
    Stage::new(env!("CARGO_BIN_EXE_paced-worker"))
}

fn sealed(suite: &str) -> zbus::OwnedFd {
    document::seal(suite.as_bytes()).unwrap().into()
}

fn read(document: zbus::OwnedFd) -> Vec<u8> {
    document::read(OwnedFd::from(document), LONGEST_REPORT).unwrap()
}

fn option<'a>(name: &str, value: impl Into<zbus::Variant<'a>>) -> Keyed {
    Keyed::from([(name.to_owned(), value.into().try_into().unwrap())])
}

/// An interface as an object describes itself, in a document of its own.
async fn described(daemon: &Daemon, path: &str, interface: &str) -> String {
    let builder = IntrospectableProxy::builder(&daemon.connection).destination(names::SERVICE);
    let proxy = builder.path(path.to_owned()).build().await.unwrap();
    let xml = proxy.introspect().await.unwrap();
    let from = xml.find(&format!("  <interface name=\"{interface}\">")).unwrap_or_else(|| panic!("{path}: {xml}"));
    let end = "</interface>\n";
    let to = from + xml[from..].find(end).unwrap() + end.len();
    let doctype = "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
                   \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n";
    format!("{doctype}<node>\n{}</node>\n", &xml[from..to])
}

/// `MIGPERF_BLESS=1` writes what the daemon serves; else it must be what is there.
#[tokio::test]
async fn the_daemon_serves_what_the_golden_files_describe() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let job = daemon.submit(SUITE, "auto", true).await.unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dbus/interfaces");
    for (path, interface) in [
        (names::ROOT.to_owned(), "org.migperf1.Manager"),
        (names::job_path(job), "org.migperf1.Job"),
        (names::gpu_path(0), "org.migperf1.Gpu"),
    ] {
        let served = described(&daemon, &path, interface).await;
        let file = folder.join(format!("{interface}.xml"));
        if std::env::var_os("MIGPERF_BLESS").is_some() {
            std::fs::write(&file, &served).unwrap();
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(served, golden, "{interface} changed: a break needs org.migperf2, an addition MIGPERF_BLESS=1");
    }
}

#[tokio::test]
async fn every_method_and_property_is_answered_peer_to_peer() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let manager = daemon.manager().await;
    assert_eq!(manager.version().await.unwrap(), env!("CARGO_PKG_VERSION"));
    assert_eq!(PathBuf::from(manager.state_directory().await.unwrap()), stage.state());

    let seed = option(submit::SEED, 77_u64);
    let plan: PlanAnswer =
        serde_json::from_slice(&read(manager.plan_job(sealed(SUITE), &seed).await.unwrap())).unwrap();
    assert_eq!((plan.plan.seed, plan.plan.trials.len(), plan.refusals.len()), (77, 2, 0));
    assert!(plan.device.starts_with("SIMULATED NVIDIA H200 0 (GPU-"), "{}", plan.device);

    let check: Check = serde_json::from_slice(&read(manager.open_check(&Keyed::new()).await.unwrap())).unwrap();
    let subjects: BTreeSet<&str> = check.items.iter().map(|item| item.subject.as_str()).collect();
    for subject in
        ["NVIDIA driver", "GPU 0", "libtorch", "MPS control program", "launcher", "worker", "state directory"]
    {
        assert!(subjects.contains(subject), "{subject}: {check:?}");
    }

    let layouts: Layouts = serde_json::from_slice(&read(manager.open_layouts(&Keyed::new()).await.unwrap())).unwrap();
    assert_eq!((layouts.simulated, layouts.gpus[0].layout.as_str(), layouts.gpus[0].offers.len()), (true, "off", 7));
    let plan = manager.plan_layout("0", "7g", &Keyed::new()).await.unwrap();
    let plan: LayoutPlan = serde_json::from_slice(&read(plan)).unwrap();
    assert_eq!((plan.gpu.as_str(), plan.found.as_str()), (stage.simulation.uuid.as_str(), "off"));

    let gpu = GpuProxy::builder(&daemon.connection).destination(names::SERVICE).path(names::gpu_path(0));
    let gpu = gpu.build().await.unwrap();
    assert_eq!((gpu.index().await.unwrap(), gpu.uuid().await.unwrap()), (0, stage.simulation.uuid.clone()));
    assert_eq!((gpu.name().await.unwrap().as_str(), gpu.memory_bytes().await.unwrap()), ("NVIDIA H200", 143_771 << 20));

    let path = manager.submit_job(sealed(SUITE), &option(submit::ATTACHED, true)).await.unwrap();
    let number_of = names::job_of_path(path.as_str()).unwrap();
    let job: JobProxy<'_> = daemon.job(number_of).await;
    assert_eq!(job.id().await.unwrap(), number_of);
    assert_eq!(job.uid().await.unwrap().len(), 32);
    assert_eq!(
        (job.name().await.unwrap().as_str(), job.owner().await.unwrap()),
        ("interface", nix::unistd::geteuid().as_raw())
    );
    assert_eq!(number(&job.progress().await.unwrap(), key::TRIALS_TOTAL), Some(2));

    // Whoever comes later finds the objects that are there.
    let builder = ObjectManagerProxy::builder(&daemon.connection).destination(names::SERVICE);
    let objects = builder.path(names::ROOT).build().await.unwrap().get_managed_objects().await.unwrap();
    let has = |path: &str, interface: &'static str| {
        let interface = InterfaceName::try_from(interface).unwrap();
        objects.iter().any(|(found, faces)| found.as_str() == path && faces.keys().any(|face| *face == interface))
    };
    assert!(has(path.as_str(), "org.migperf1.Job") && has(&names::gpu_path(0), "org.migperf1.Gpu"), "{objects:?}");

    daemon.wait_for(number_of, &["done"], LIMIT).await;
    assert!(!read(manager.open_report(number_of, "json", &Keyed::new()).await.unwrap()).is_empty());
    let (rows, cursor) = manager.list_jobs(&Keyed::new(), "", 10).await.unwrap();
    assert_eq!((rows.len(), cursor.as_str()), (1, ""));
    assert!(matches!(manager.cancel_job(number_of, &Keyed::new()).await, Err(Error::NoSuchJob(_))));
}

#[tokio::test]
async fn the_list_pages_and_filters() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let manager = daemon.manager().await;
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(daemon.submit(SUITE, "auto", true).await.unwrap());
    }
    for job in jobs.iter().skip(1).rev() {
        manager.cancel_job(*job, &Keyed::new()).await.unwrap();
    }
    daemon.wait_for(jobs[0], &["done"], LIMIT).await;
    let ids = |rows: &[Keyed]| rows.iter().map(|row| number(row, key::ID).unwrap()).collect::<Vec<_>>();
    let (mut cursor, mut pages) = (String::new(), Vec::new());
    loop {
        let (rows, next) = manager.list_jobs(&Keyed::new(), &cursor, 2).await.unwrap();
        pages.push(ids(&rows));
        cursor = next;
        if cursor.is_empty() {
            break;
        }
    }
    let newest_first: Vec<u32> = jobs.iter().rev().copied().collect();
    assert_eq!(pages, newest_first.chunks(2).map(<[u32]>::to_vec).collect::<Vec<_>>());
    let (done, _) = manager.list_jobs(&option(filter::STATE, "done"), "", 10).await.unwrap();
    assert_eq!(ids(&done), [jobs[0]]);
    assert_eq!(text(&done[0], key::NAME).as_deref(), Some("interface"));
    let (nobodys, _) = manager.list_jobs(&option(filter::OWNER, 4_000_000_u32), "", 10).await.unwrap();
    assert!(nobodys.is_empty());
}

#[tokio::test]
async fn what_the_interface_does_not_document_is_an_error() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let manager = daemon.manager().await;
    let none = Keyed::new();

    // Each names the key or the value that is wrong.
    let mut errors = Vec::new();
    for (options, words) in [
        (option("devise", "cpu"), "`devise` is not a key"),
        (option(submit::ATTACHED, "yes"), "option `attached` can't be of type `s`"),
        (option(submit::SEED, -1_i64), "option `seed` can't be of type `x`"),
    ] {
        errors.push((manager.submit_job(sealed(SUITE), &options).await.map(drop), words));
        errors.push((manager.plan_job(sealed(SUITE), &options).await.map(drop), words));
    }
    errors.push((manager.list_jobs(&option("name", "x"), "", 1).await.map(drop), "`name` is not a key"));
    errors.push((manager.list_jobs(&option(filter::STATE, "dead"), "", 1).await.map(drop), "`dead` is not a state"));
    errors.push((manager.list_jobs(&none, "last", 1).await.map(drop), "`last` is no cursor"));
    errors.push((manager.open_report(1, "html", &none).await.map(drop), "`html` is not a format"));
    errors.push((manager.open_report(1, "json", &option("x", 1_u32)).await.map(drop), "`x` is not a key"));
    errors.push((manager.cancel_job(1, &option("x", 1_u32)).await, "`x` is not a key"));
    errors.push((manager.open_check(&option("x", 1_u32)).await.map(drop), "`x` is not a key"));
    errors.push((manager.open_layouts(&option("x", 1_u32)).await.map(drop), "`x` is not a key"));
    errors.push((manager.plan_layout("0", "off", &option("x", 1_u32)).await.map(drop), "`x` is not a key"));
    errors.push((manager.apply_layout("0", "off", &option("hold", "x")).await.map(drop), "`hold` is not a key"));
    let replace = option(names::layout::REPLACE_EXISTING, 1_u32);
    errors.push((manager.apply_layout("0", "off", &replace).await.map(drop), "can't be of type `u`"));
    errors.push((manager.restore_layout("0", &option("x", 1_u32)).await.map(drop), "`x` is not a key"));
    errors.push((manager.plan_layout("0", "3h", &none).await.map(drop), "`3h` is no MIG profile"));
    // A document that could change while it is read, or is too long.
    let open: OwnedFd = tempfile::tempfile().unwrap().into();
    errors.push((manager.submit_job(open.into(), &none).await.map(drop), "not a sealed memory file"));
    let long = " ".repeat(usize::try_from(LONGEST_SUITE).unwrap() + 1);
    errors.push((manager.submit_job(sealed(&long), &none).await.map(drop), "1048577 bytes, over the limit of 1048576"));
    for (result, words) in errors {
        let Err(Error::InvalidArgument(text)) = result else { panic!("{words}: {result:?}") };
        assert!(text.contains(words), "{words}: {text}");
    }

    for (suite, place) in [
        (SUITE.replace("batch-size = 1", "batch-sise = 1"), "13:47: a workload has no key `batch-sise`"),
        (SUITE.replace("version = 1", "version = 9"), "2:11: "),
        ("[[trial]".to_owned(), "1:"),
    ] {
        let Err(Error::InvalidSuite(text)) = daemon.submit(&suite, "auto", true).await else { panic!("{suite}") };
        assert!(text.contains(place), "{place}: {text}");
    }
    let bytes: zbus::OwnedFd = document::seal(b"version = \xff").unwrap().into();
    assert!(matches!(manager.submit_job(bytes, &none).await, Err(Error::InvalidSuite(_))));
    let Err(Error::NoSuchDevice(text)) = daemon.submit(SUITE, "7", true).await else { panic!("there is no GPU 7") };
    assert!(text.contains(&stage.simulation.uuid), "{text}");
    assert!(matches!(manager.plan_layout("7", "off", &none).await, Err(Error::NoSuchDevice(_))));
    assert!(matches!(manager.restore_layout("7", &none).await, Err(Error::NoSuchDevice(_))));

    assert!(matches!(manager.open_report(99, "json", &none).await, Err(Error::NoSuchJob(_))));
    assert!(matches!(manager.cancel_job(99, &none).await, Err(Error::NoSuchJob(_))));
    stage.workers_do("silence");
    let job = daemon.submit(SUITE, "auto", true).await.unwrap();
    assert!(matches!(manager.open_report(job, "json", &none).await, Err(Error::NothingToReport(_))));
    let (rows, _) = manager.list_jobs(&none, "", 10).await.unwrap();
    assert_eq!(rows.len(), 1, "nothing that was refused is a job");
}
