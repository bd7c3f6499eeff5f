-- The groups of people as the identity provider gave them last: what somebody has left running is
-- checked without a token of theirs.

create table noetl.person_groups (
    issuer text not null,
    subject text not null,
    groups text [] not null,
    seen_at timestamptz not null,
    primary key (issuer, subject)
);

comment on column noetl.person_groups.seen_at is
'When the provider gave them: the groups of an older session do not replace newer ones.';

insert into noetl.person_groups (issuer, subject, groups, seen_at)
select distinct on (s.issuer, s.subject)
    s.issuer,
    s.subject,
    s.groups,
    s.created_at
from noetl.session as s
where s.issuer not in ('noetl:owner', 'noetl:key')
order by s.issuer, s.subject, s.created_at desc;

revoke all on noetl.person_groups from public;
grant select, insert, update on noetl.person_groups to noetl_planner;
