{{/* Selectors hold only what never changes. */}}
{{- define "noetl.selectors" -}}
app.kubernetes.io/name: noetl-{{ .Values.service }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "noetl.labels" -}}
{{ include "noetl.selectors" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.service }}
app.kubernetes.io/part-of: noetl
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "noetl.name" -}}
{{ printf "%s-%s" .Release.Name .Values.service | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What the release of a version publishes: ghcr.io/owner/noetl-planner:0.1.0, without the v of its tag; with a
digest that very image, whatever the tag points to by now. */}}
{{- define "noetl.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $name .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $name $tag | quote }}
{{- end -}}
{{- end }}

{{/* The planner of this release, as the chart noetl names it; empty where the release has none of its own. */}}
{{- define "noetl.ownPlanner" -}}
{{- if regexMatch "(^|/)noetl/charts/" .Template.BasePath -}}
{{ printf "%s.%s.svc" (printf "%s-planner" .Release.Name | trunc 63 | trimSuffix "-") .Release.Namespace }}
{{- end -}}
{{- end }}

{{/* Where answers to submitted work are sent. A wrong guess would lose them, and nobody would see why. */}}
{{- define "noetl.callbackUrl" -}}
{{- $planner := include "noetl.ownPlanner" . -}}
{{- if .Values.settings.callbackUrl -}}
{{ .Values.settings.callbackUrl }}
{{- else if $planner -}}
{{ printf "http://%s:8080" $planner }}
{{- else -}}
{{ required (printf "settings.callbackUrl: name the planner's API, such as http://noetl-planner.%s.svc:8080" .Release.Namespace) "" }}
{{- end -}}
{{- end }}

{{/* A number of a million and more that comes from a file or a flag is a float to Helm: it is written whole. */}}
{{- define "noetl.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end }}

{{/* Settings are the fields of the service's settings.py; secrets name a key of an existing Secret. */}}
{{- define "noetl.environment" -}}
{{- $prefix := printf "NOETL_%s_" (upper .Values.service) -}}
- name: {{ $prefix }}INSTANCE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: {{ $prefix }}HEALTH_HOST
  value: 0.0.0.0
- name: {{ $prefix }}HEALTH_PORT
  value: "9090"
{{- if .Values.isSharded }}
- name: {{ $prefix }}SHARD_INDEX
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
- name: {{ $prefix }}POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: {{ $prefix }}SHARD_COUNT
  value: {{ .Values.replicas | quote }}
{{- end }}
{{- range $field, $value := .Values.settings }}
- name: {{ $prefix }}{{ $field | snakecase | upper }}
  {{- if eq $field "callbackUrl" }}
  value: {{ include "noetl.callbackUrl" $ | quote }}
  {{- else }}
  value: {{ include "noetl.text" $value | quote }}
  {{- end }}
{{- end }}
{{- range $field, $path := .Values.fields }}
- name: {{ $prefix }}{{ $field | snakecase | upper }}
  valueFrom: {fieldRef: {fieldPath: {{ $path | quote }}}}
{{- end }}
{{- range $field, $key := .Values.secrets }}
- name: {{ $prefix }}{{ $field | snakecase | upper }}
  valueFrom:
    secretKeyRef: {name: {{ $.Values.existingSecret | quote }}, key: {{ $key | quote }}}
{{- end }}
{{- /* Where the Secret lacks one of these, its setting keeps its default. */}}
{{- range $field, $key := .Values.optionalSecrets }}
- name: {{ $prefix }}{{ $field | snakecase | upper }}
  valueFrom:
    secretKeyRef: {name: {{ $.Values.existingSecret | quote }}, key: {{ $key | quote }}, optional: true}
{{- end }}
{{- end }}
