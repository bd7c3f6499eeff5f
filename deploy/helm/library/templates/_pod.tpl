{{/* The account that a chart makes for its pods; a worker that starts Spark's executors needs one. */}}
{{- define "noetl.ownAccount" -}}
{{- if and .Values.spark .Values.spark.onKubernetes -}}
{{ include "noetl.name" . }}-spark
{{- else -}}
default
{{- end -}}
{{- end }}
{{- define "noetl.podSpec" -}}
serviceAccountName: {{ .Values.serviceAccountName | default (include "noetl.ownAccount" .) }}
automountServiceAccountToken: {{ if and .Values.spark .Values.spark.onKubernetes }}true{{ else }}false{{ end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .Values.service }}
    image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    {{- with .Values.command }}
    command: {{ toJson . }}
    {{- end }}
    env:
      {{- include "noetl.environment" . | nindent 6 }}
      {{- with .Values.extraEnvironment }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: health, containerPort: 9090}
      {{- with .Values.httpPort }}
      - {name: http, containerPort: {{ . }}}
      {{- end }}
    startupProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 2
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 10
    readinessProbe:
      httpGet: {path: /readyz, port: health}
      periodSeconds: 5
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: ["ALL"]}
    volumeMounts:
      - {name: scratch, mountPath: /tmp}
volumes:
  - {name: scratch, emptyDir: {}}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}
