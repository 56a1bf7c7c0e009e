{{- define "memreap.selector" -}}
app.kubernetes.io/name: memreap
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "memreap.labels" -}}
{{ include "memreap.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
