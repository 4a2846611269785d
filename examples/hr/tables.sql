-- The department's own tables. `change_log` and `report` have no unique keys on purpose: an effect applied twice would show.
create schema if not exists hr;

create table if not exists hr.employee (
    id bigint primary key,
    position text not null,
    department text not null,
    manager_id bigint not null
);

create table if not exists hr.requested_change (
    run_id uuid not null,
    employee_id bigint not null references hr.employee,
    position text not null,
    department text not null,
    manager_id bigint not null,
    primary key (run_id, employee_id)
);

create table if not exists hr.change_log (
    run_id uuid not null,
    employee_id bigint not null,
    applied_at timestamptz not null default clock_timestamp()
);

create table if not exists hr.report (
    run_id uuid,
    name text not null,
    business_date date not null,
    headcount jsonb not null,
    computed_at timestamptz not null default clock_timestamp()
);

create table if not exists hr.heartbeat (
    tick timestamptz not null,
    at timestamptz not null default clock_timestamp()
);
