//! JSON reports against `docs/report.schema.json`, which describes them to others.

use jsonschema::Validator;
use migperf_core::report::{Fault, Flag, Report};
use migperf_core::suite::Target;
use serde_json::{Value, json};

use crate::synthetic::{REPEATED, TROUBLED, job, troubled};

const SCHEMA: &str = include_str!("../../../docs/report.schema.json");

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

fn validator() -> Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn check(report: &Report) {
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    let validator = validator();
    let errors: Vec<String> =
        validator.iter_errors(&json).map(|error| format!("{} at {}", error, error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn reports_are_as_the_schema_says() {
    check(&Report::from_results(&job(REPEATED, Target::Gpu)));
    check(&Report::from_results(&job(TROUBLED, Target::Gpu)));
    check(&Report::from_results(&troubled()));
    let cpu =
        TROUBLED.replace("\"exclusive\"", "\"cpu\"").replace("\"mps\"", "\"cpu\"").replace("\"time-slice\"", "\"cpu\"");
    let report = Report::from_results(&job(&cpu, Target::Cpu));
    assert!(report.trials.iter().all(|trial| trial.device.energy_j.reason() == Some("no GPU takes part")));
    check(&report);
}

#[test]
fn every_object_of_the_schema_is_closed() {
    fn walk(value: &Value, path: &str, open: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                if map.get("type") == Some(&json!("object")) && map.get("additionalProperties") != Some(&json!(false)) {
                    open.push(path.to_owned());
                }
                map.iter().for_each(|(key, value)| walk(value, &format!("{path}/{key}"), open));
            }
            Value::Array(values) => values.iter().for_each(|value| walk(value, path, open)),
            _ => {}
        }
    }
    let mut open = Vec::new();
    walk(&schema(), "", &mut open);
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn what_is_not_in_the_schema_is_refused() {
    let validator = validator();
    let good: Value = serde_json::from_str(&Report::from_results(&troubled()).to_json()).unwrap();
    assert!(validator.is_valid(&good));
    let breaks: [fn(&mut Value); 5] = [
        |report| report["schema"] = json!(2),
        |report| report["trials"][0]["surplus"] = json!(1),
        |report| report["trials"][0]["members"][0]["items"] = json!({ "value": null }),
        |report| report["cells"][0]["power_w"] = json!(0),
        |report| drop(report.as_object_mut().unwrap().remove("drift")),
    ];
    for (at, change) in breaks.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(!validator.is_valid(&bad), "change {at} passes");
    }
}

#[test]
fn every_code_is_in_the_schema_and_in_the_document() {
    let document = include_str!("../../../docs/report.md");
    let schema = schema();
    let list = |pointer: &str| schema.pointer(pointer).unwrap().clone();
    assert_eq!(list("/$defs/flag_code/enum"), json!(Flag::ALL.iter().map(|flag| flag.code()).collect::<Vec<_>>()));
    assert_eq!(
        list("/$defs/fault/properties/code/enum"),
        json!(Fault::ALL.iter().map(|fault| fault.code()).collect::<Vec<_>>())
    );
    let rows = Flag::ALL.iter().map(|flag| (flag.code(), flag.cause(), flag.remedy()));
    for (code, cause, remedy) in
        rows.chain(Fault::ALL.iter().map(|fault| (fault.code(), fault.cause(), fault.remedy())))
    {
        let row = format!("| `{code}` | {cause} | {remedy} |");
        assert!(document.contains(&row), "docs/report.md lacks the row\n{row}");
    }
}

#[test]
fn every_field_is_documented() {
    let document = include_str!("../../../docs/report.md");
    let schema = schema();
    let mut missing = Vec::new();
    let objects = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    for object in objects {
        for field in object["properties"].as_object().into_iter().flat_map(|fields| fields.keys()) {
            if !document.contains(&format!("`{field}`")) {
                missing.push(field.clone());
            }
        }
    }
    assert!(missing.is_empty(), "docs/report.md does not name {missing:?}");
}
