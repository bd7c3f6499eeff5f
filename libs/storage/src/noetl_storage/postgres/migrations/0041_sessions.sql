-- Sessions of people in browsers. The cookie's secret is not kept, only its digest.

create table noetl.session (
    session_hash text primary key check (length(session_hash) = 64),
    issuer text not null,
    subject text not null,
    name text not null,
    email text not null,
    groups text[] not null,
    created_at timestamptz not null,
    expires_at timestamptz not null check (expires_at > created_at),
    revoked_at timestamptz
);

comment on column noetl.session.groups is 'As the identity provider gave them at the sign-in.';

create index session_person on noetl.session (issuer, subject);
create index session_expiry on noetl.session (expires_at);

revoke all on noetl.session from public;
grant select, insert, update, delete on noetl.session to noetl_planner;
