//! The migperf service on the system bus: whether it is installed, and the connection to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use migperf_dbus::names::SERVICE;
use migperf_dbus::proxy::ManagerProxy;
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;

use crate::connect::{ANSWER_LIMIT, ConnectError};
use crate::spawn::Surroundings;

/// Where the bus looks for services that it can activate.
const DIRECTORIES: [&str; 5] = [
    "/etc/dbus-1/system-services",
    "/run/dbus-1/system-services",
    "/usr/local/share/dbus-1/system-services",
    "/usr/share/dbus-1/system-services",
    "/lib/dbus-1/system-services",
];

/// A system bus that does not answer for this long tells nothing of the service.
const BUS_LIMIT: Duration = Duration::from_secs(5);

/// How it is known that the service is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Installed {
    /// Its activation file.
    File(PathBuf),
    /// The bus says so.
    OnBus,
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::OnBus => write!(f, "the system bus knows {SERVICE}"),
        }
    }
}

/// The activation file of the service, if one of the directories has it.
pub(crate) fn activation_file(directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(format!("{SERVICE}.service"))).find(|path| path.exists())
}

/// Whether the service is installed. A machine without a system bus has none.
pub(crate) async fn installed(around: &Surroundings) -> Option<Installed> {
    if let Some(path) = activation_file(&around.service_directories) {
        return Some(Installed::File(path));
    }
    match tokio::time::timeout(BUS_LIMIT, on_bus(around)).await {
        Ok(Ok(true)) => Some(Installed::OnBus),
        Ok(Ok(false) | Err(_)) | Err(_) => None,
    }
}

fn bus(around: &Surroundings) -> Builder<'static> {
    match &around.system_bus {
        Some(address) => Builder::address(address.as_str()),
        None => Builder::system(),
    }
}

async fn on_bus(around: &Surroundings) -> zbus::Result<bool> {
    let bus = bus(around).method_timeout(BUS_LIMIT).build().await?;
    let bus = DBusProxy::new(&bus).await?;
    if bus.name_has_owner(SERVICE.try_into()?).await? {
        return Ok(true);
    }
    Ok(bus.list_activatable_names().await?.iter().any(|name| name.as_str() == SERVICE))
}

/// Connects to the installed service and makes sure that it answers.
pub(crate) async fn connect(around: &Surroundings, installed: Installed) -> Result<Connection, ConnectError> {
    let failed = |source: zbus::Error| match &source {
        zbus::Error::FDO(error) if matches!(**error, zbus::fdo::Error::AccessDenied(_)) => {
            ConnectError::ServiceDenied { source }
        }
        _ => ConnectError::ServiceBroken { installed: installed.clone(), source },
    };
    let bus = bus(around).method_timeout(ANSWER_LIMIT).build().await.map_err(failed)?;
    let manager = ManagerProxy::new(&bus).await.map_err(failed)?;
    manager.version().await.map_err(failed)?;
    Ok(bus)
}

/// The directories in which the bus looks.
pub(crate) fn directories() -> Vec<PathBuf> {
    DIRECTORIES.iter().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_activation_file_is_found_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let directories: Vec<PathBuf> = ["a", "b"].iter().map(|name| root.path().join(name)).collect();
        std::fs::create_dir(&directories[1]).unwrap();
        assert_eq!(activation_file(&directories), None);
        let file = directories[1].join("org.migperf1.service");
        std::fs::write(&file, "[D-BUS Service]\n").unwrap();
        assert_eq!(activation_file(&directories), Some(file));
    }
}
