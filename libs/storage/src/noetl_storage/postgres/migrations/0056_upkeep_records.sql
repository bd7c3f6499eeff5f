-- `noetl projection rebuild` and `noetl retention run` record who did it, and run as the projector
-- and the archivist. These record what they do themselves, and nothing that others do.

create or replace function noetl.append_administration(
    of_tenant text,
    of_organization text,
    new_version bigint,
    previous_checksum text,
    new_checksum text,
    new_time timestamptz,
    new_action text,
    new_target text,
    new_outcome text,
    new_actor json,
    new_details json
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Within this function `current_user` is the schema's owner.
    if not pg_has_role(session_user, 'noetl_planner', 'member')
        and not pg_has_role(session_user, current_user, 'member')
        and not (
            new_action in ('projection.rebuild_begun', 'projection.rebuilt')
            and pg_has_role(session_user, 'noetl_projector', 'member')
        )
        and not (
            new_action in ('retention.run_begun', 'retention.run_ended')
            and pg_has_role(session_user, 'noetl_archivist', 'member')
        )
    then
        raise exception '% may not record %', session_user, new_action using errcode = '42501';
    end if;
    update noetl.administration_head as h
    set version = new_version, checksum = new_checksum
    where h.tenant_id = of_tenant
        and h.organization_id = of_organization
        and h.version = new_version - 1
        and h.checksum = previous_checksum;
    if not found then
        raise exception 'the administration stream has moved on' using errcode = 'NT002';
    end if;
    insert into noetl.administration_event (
        tenant_id, organization_id, version, event_time, action, target, outcome, actor, details,
        checksum
    )
    values (
        of_tenant, of_organization, new_version, new_time, new_action, new_target, new_outcome,
        new_actor, new_details, new_checksum
    );
end
$$;

grant execute on function noetl.lock_administration_head(text, text)
to noetl_projector, noetl_archivist;
grant execute on function noetl.append_administration(
    text, text, bigint, text, text, timestamptz, text, text, text, json, json
) to noetl_projector, noetl_archivist;
