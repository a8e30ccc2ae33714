//! The program at the other end of a socket pair.

mod stage;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use migperf_dbus::Keyed;
use migperf_dbus::error::Error;
use migperf_dbus::helper::{HelperProxy, apply, changed, report};
use stage::{Stage, on_machine};
use zbus::connection::Builder;
use zbus::fdo::IntrospectableProxy;

const H200: &str = r#"{ "gpus": [ { "model": "H200-141" } ] }"#;

struct Helper {
    child: Child,
    connection: Option<zbus::Connection>,
}

impl Helper {
    async fn start(stage: &Stage) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_migperf-helper"))
            .args(["--peer", "--config"])
            .arg(stage.config_file(""))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        ours.set_nonblocking(true).unwrap();
        let connection = Builder::unix_stream(ours).p2p().build().await.unwrap();
        Self { child, connection: Some(connection) }
    }

    async fn proxy(&self) -> HelperProxy<'static> {
        HelperProxy::new(self.connection.as_ref().unwrap()).await.unwrap()
    }

    fn ends(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().unwrap();
        panic!("the helper does not end");
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
}

fn option<'a>(name: &str, value: impl Into<zbus::Variant<'a>>) -> Keyed {
    Keyed::from([(name.to_owned(), value.into().try_into().unwrap())])
}

fn texts(done: &Keyed, key: &str) -> Vec<String> {
    done[key].try_clone().unwrap().try_into().unwrap()
}

fn until(what: &str, test: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !test() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_layout_lasts_as_long_as_its_caller() {
    on_machine("a_layout_lasts_as_long_as_its_caller", H200, |stage| {
        run(async {
            let found = stage.layout();
            let mut helper = Helper::start(stage).await;
            let proxy = helper.proxy().await;
            assert_eq!(proxy.version().await.unwrap(), env!("CARGO_PKG_VERSION"));
            let (reader, writer) = std::io::pipe().unwrap();
            let gpu = stage.gpu.as_str();
            let liveness = || zbus::OwnedFd::from(OwnedFd::from(reader.try_clone().unwrap()));
            let (instances, done) = proxy.apply_layout(gpu, "7x1g", liveness(), &Keyed::new()).await.unwrap();
            assert_eq!(instances.len(), 7);
            assert_eq!(instances[0].profile, "1g.18gb");
            let there = stage.uuids();
            let mut created = texts(&done, changed::CREATED_UUIDS);
            created.sort();
            assert_eq!(created, {
                let mut there = there.clone();
                there.sort();
                there
            });
            assert!(bool::try_from(done[changed::MODE_CHANGED].try_clone().unwrap()).unwrap());
            let report = proxy.report().await.unwrap();
            let word = |key: &str| String::try_from(report[0][key].try_clone().unwrap()).unwrap();
            assert_eq!(
                (word(report::STATE), word(report::FOUND), word(report::WANTED)),
                ("held".into(), "off".into(), "7x1g".into())
            );
            // Another layout of the same caller: three of seven stay.
            let (instances, done) =
                proxy.apply_layout(gpu, "3g+3x1g", liveness(), &option(apply::PURPOSE, "a test")).await.unwrap();
            assert_eq!(instances.len(), 4);
            assert_eq!(texts(&done, changed::CREATED_UUIDS).len(), 1);
            drop(writer);
            until("the end of the pipe restores", || stage.layout() == found);
            // The layout is back a moment before the ledger is closed.
            while !proxy.report().await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(proxy);
            drop(helper.connection.take());
            assert!(helper.ends());
            assert_eq!(stage.layout(), found);
        });
    });
}

#[test]
fn a_caller_that_dies_leaves_the_gpu_as_it_was() {
    on_machine("a_caller_that_dies_leaves_the_gpu_as_it_was", H200, |stage| {
        run(async {
            let found = stage.layout();
            let mut helper = Helper::start(stage).await;
            let proxy = helper.proxy().await;
            let (reader, writer) = std::io::pipe().unwrap();
            let applied = stage.gpu.to_string();
            let waiting = tokio::spawn(async move {
                let _ = proxy.apply_layout(&applied, "7x1g", OwnedFd::from(reader).into(), &Keyed::new()).await;
            });
            until("something is made", || stage.layout() != found);
            waiting.abort();
            drop(helper.connection.take());
            drop(writer);
            assert!(helper.ends());
            assert_eq!(stage.layout(), found);
        });
    });
}

#[test]
fn a_killed_helper_is_followed_by_one_that_restores() {
    on_machine("a_killed_helper_is_followed_by_one_that_restores", H200, |stage| {
        run(async {
            let found = stage.layout();
            let mut helper = Helper::start(stage).await;
            let (reader, _writer) = std::io::pipe().unwrap();
            let (gpu, proxy) = (stage.gpu.as_str(), helper.proxy().await);
            proxy.apply_layout(gpu, "3g+3g", OwnedFd::from(reader).into(), &Keyed::new()).await.unwrap();
            helper.child.kill().unwrap();
            helper.child.wait().unwrap();
            assert_ne!(stage.layout(), found);
            let restored = Command::new(env!("CARGO_BIN_EXE_migperf-helper"))
                .args(["--restore", "--config"])
                .arg(stage.config_file(""))
                .status()
                .unwrap();
            assert!(restored.success());
            assert_eq!(stage.layout(), found);
        });
    });
}

#[test]
fn requests_are_checked() {
    on_machine("requests_are_checked", H200, |stage| {
        run(async {
            let mut helper = Helper::start(stage).await;
            let (gpu, proxy) = (stage.gpu.as_str(), helper.proxy().await);
            let (reader, _writer) = std::io::pipe().unwrap();
            let liveness = || zbus::OwnedFd::from(OwnedFd::from(reader.try_clone().unwrap()));
            let none = Keyed::new();
            let apply = async |gpu: &str, layout: &str, options: &Keyed| {
                proxy.apply_layout(gpu, layout, liveness(), options).await.unwrap_err()
            };
            assert!(matches!(apply("GPU-0", "7x1g", &none).await, Error::InvalidArgument(_)));
            assert!(matches!(apply(gpu, "7x", &none).await, Error::InvalidArgument(_)));
            assert!(
                matches!(apply(gpu, "7x1g", &option("holds", "x")).await, Error::InvalidArgument(text) if text.contains("holds"))
            );
            assert!(matches!(apply(gpu, "7x1g", &option(apply::HOLD, "for-ever")).await, Error::InvalidArgument(_)));
            assert!(matches!(
                apply(gpu, "7x1g", &option(apply::REPLACE_EXISTING, 1_u32)).await,
                Error::InvalidArgument(_)
            ));
            let other = "GPU-00000000-0000-0000-0000-000000000000";
            assert!(matches!(apply(other, "7x1g", &none).await, Error::NoSuchDevice(_)));
            assert!(matches!(apply(gpu, "8x1g", &none).await, Error::LayoutInfeasible(text) if text.contains("7x1g")));
            assert!(matches!(apply(gpu, "5g", &none).await, Error::LayoutInfeasible(_)));
            let (dead, _) = std::io::pipe().unwrap();
            let ended = proxy.apply_layout(gpu, "7x1g", OwnedFd::from(dead).into(), &none).await;
            assert!(matches!(ended, Err(Error::InvalidArgument(text)) if text.contains("ended")));
            let file = std::fs::File::open("/dev/null").unwrap();
            let file = proxy.apply_layout(gpu, "7x1g", OwnedFd::from(file).into(), &none).await;
            assert!(matches!(file, Err(Error::InvalidArgument(_))));
            let client = migperf_gpu::library::Nvml::open(Some(&stage.library)).unwrap();
            let busy = apply(gpu, "7x1g", &none).await;
            let own = format!("pid {}", std::process::id());
            assert!(matches!(&busy, Error::GpuBusy(text) if text.contains(&own)), "{busy:?}");
            drop(client);
            assert!(proxy.report().await.unwrap().is_empty());
            let (_, done) = proxy.restore(gpu, &none).await.unwrap();
            assert!(bool::try_from(done[changed::AS_FOUND].try_clone().unwrap()).unwrap());
            drop(proxy);
            drop(helper.connection.take());
            assert!(helper.ends());
        });
    });
}

#[test]
fn the_interface_is_as_described() {
    on_machine("the_interface_is_as_described", H200, |stage| {
        run(async {
            let mut helper = Helper::start(stage).await;
            let builder = IntrospectableProxy::builder(helper.connection.as_ref().unwrap());
            let builder = builder.destination(migperf_dbus::helper::SERVICE).path(migperf_dbus::helper::PATH);
            let proxy = builder.build().await.unwrap();
            let xml = proxy.introspect().await.unwrap();
            let from = xml.find("  <interface name=\"org.migperf1.Helper\">").unwrap();
            let to = from + xml[from..].find("</interface>\n").unwrap() + "</interface>\n".len();
            let doctype = "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
                           \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n";
            let served = format!("{doctype}<node>\n{}</node>\n", &xml[from..to]);
            let golden =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../dbus/interfaces/org.migperf1.Helper.xml");
            if std::env::var_os("MIGPERF_BLESS").is_some() {
                std::fs::write(&golden, &served).unwrap();
            }
            assert_eq!(served, std::fs::read_to_string(golden).unwrap());
            drop(proxy);
            drop(helper.connection.take());
            assert!(helper.ends());
        });
    });
}
