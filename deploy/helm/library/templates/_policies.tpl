{{/* Rules by name, and further ones. Without peers a rule would hold for everybody. */}}
{{- define "noetl.policyRules" -}}
{{- range $name, $rule := .rules }}
{{- $_ := get $rule $.peers | required (printf "networkPolicy: the rule %s lacks `%s`" $name $.peers) }}
- {{ toJson $rule }}
{{- end }}
{{- range .extra }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{- define "noetl.ingressRules" -}}
{{- with .Values.networkPolicy -}}
{{ include "noetl.policyRules" (dict "rules" .ingress "extra" .extraIngress "peers" "from") }}
{{- end }}
{{- end }}

{{- define "noetl.egressRules" -}}
{{- with .Values.networkPolicy -}}
{{ include "noetl.policyRules" (dict "rules" .egress "extra" .extraEgress "peers" "to") }}
{{- end }}
{{- end }}

{{/* What no rule names is refused, in both directions. */}}
{{- define "noetl.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "noetl.selectors" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- include "noetl.ingressRules" . | nindent 4 }}
  egress:
    {{- include "noetl.egressRules" . | nindent 4 }}
{{- end }}
