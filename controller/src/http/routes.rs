//! Which handler takes which route.

use actix_web::dev::{ServiceFactory, ServiceRequest};
use actix_web::{App, Error, web};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_actix_web::{AppExt, UtoipaApp, scope};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::openapi::Doc;
use super::{
    audit, cluster, cluster_events, commands, doctor, explain, health, history, jobs,
    kernel_routes, layouts, live, logs, memory, node_certificates, overrides, power, predictions,
    records, report, series, sessions, steps, submit, tokens, usage, wait,
};

/// Adds every route to an application.
pub(super) fn route<T>(app: App<T>) -> App<T>
where
    T: ServiceFactory<ServiceRequest, Config = (), Error = Error, InitError = ()>,
{
    // Its files are part of the program: no page of it comes from elsewhere.
    let docs = SwaggerUi::new("/docs/{_:.*}").config(Config::from("/openapi.json"));
    described(app.into_utoipa_app())
        .into_app()
        .service(health::docs)
        .service(docs)
        .default_service(web::to(health::elsewhere))
}

/// Describes every route.
pub(super) fn describe() -> OpenApi {
    described(App::new().into_utoipa_app().openapi(Doc::openapi())).split_for_parts().1
}

fn described<T>(app: UtoipaApp<T>) -> UtoipaApp<T>
where
    T: ServiceFactory<ServiceRequest, Config = (), Error = Error, InitError = ()>,
{
    let v1 = scope("/v1")
        .service(submit::submit)
        .service(jobs::list_jobs)
        // Before the route that would take `summary` for a job.
        .service(jobs::count_jobs)
        .service(jobs::show_job)
        .service(jobs::list_events)
        .service(jobs::show_script)
        .service(commands::cancel)
        .service(commands::delete)
        .service(commands::update)
        .service(commands::hold)
        .service(commands::requeue)
        .service(commands::release)
        .service(wait::wait)
        .service(logs::logs)
        .service(sessions::join)
        .service(steps::report_step)
        .service(explain::explain)
        .service(memory::show_job_memory)
        .service(cluster::list_nodes)
        .service(cluster::show_node)
        .service(series::list_series)
        .service(series::show_gpu_series)
        .service(series::show_job_series)
        .service(cluster::list_gpus)
        .service(cluster::show_gpu)
        .service(cluster::set_mig_mode)
        .service(cluster::show_info)
        .service(overrides::drain_node)
        .service(overrides::undrain_node)
        .service(overrides::clear_node)
        .service(node_certificates::invite_node)
        .service(node_certificates::revoke_node)
        .service(node_certificates::list_node_certificates)
        .service(node_certificates::show_authority)
        .service(node_certificates::rotate_authority)
        .service(doctor::doctor)
        .service(overrides::drain_gpu)
        .service(overrides::undrain_gpu)
        .service(overrides::quarantine)
        .service(overrides::clear)
        .service(overrides::pin)
        .service(overrides::unpin)
        .service(cluster_events::list_cluster_events)
        .service(kernel_routes::list_kernel_tasks)
        .service(kernel_routes::show_task_kernels)
        .service(predictions::show_predictions)
        .service(usage::show_usage)
        .service(power::show_power)
        .service(records::list_records)
        .service(report::show_report)
        .service(memory::show_efficiency)
        .service(layouts::show_layout)
        .service(layouts::plan_layout)
        .service(layouts::apply_layout)
        .service(layouts::show_availability)
        .service(layouts::show_layout_plan)
        .service(history::list_layouts)
        .service(history::list_decisions)
        .service(history::show_decision)
        .service(history::list_rounds)
        .service(history::list_past_jobs)
        .service(live::watch_jobs)
        .service(tokens::who_am_i)
        .service(tokens::list_tokens)
        .service(tokens::create_token)
        .service(tokens::revoke_token)
        .service(audit::list_entries);
    app.service(v1)
        .service(health::healthz)
        .service(health::livez)
        .service(health::readyz)
        .service(health::prometheus)
        .service(health::openapi)
}
