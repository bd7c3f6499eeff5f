-- Rules may wait for executions that still run after the seconds that the rule names.

alter table noetl.notification_rule drop constraint notification_rule_causes_check;
alter table noetl.notification_rule add constraint notification_rule_causes_check
check (causes <@ array['failed', 'recovered', 'late']);
alter table noetl.notification_rule add constraint notification_rule_deadline_check
check (not 'late' = any(causes) or longer_than_s > 0);
