//! The code interpreter: a server that is in the image, and runs once somebody asks for it.

use axum::http::StatusCode;
use ramet_proto::api::Code;

use super::refused::Refused;
use crate::dialects::e2b::E2b;
use crate::http::problem;
use crate::sandbox::Live;

/// Sees to it that it listens.
pub async fn ensure(e2b: &E2b, live: &Live) -> Result<(), Refused> {
    let listens = e2b.app.service.ensure_interpreter(&live.who, &live.id).await;
    listens.map_err(|error| {
        let problem = problem::of(&error);
        match problem.code {
            Code::NotFound | Code::Gone | Code::Promoted => Refused::not_found(&live.id, None),
            Code::WrongState => Refused::not_found(&live.id, Some(&problem.detail)),
            _ => {
                let text = format!("The code interpreter did not start: {}", problem.detail);
                Refused::other(&live.id, StatusCode::BAD_GATEWAY, &text)
            }
        }
    })
}
