{{- define "serin.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "serin.fullname" -}}
{{- $name := include "serin.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "serin.selector" -}}
app.kubernetes.io/name: {{ include "serin.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "serin.labels" -}}
{{ include "serin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "serin.serviceAccount" -}}
{{- $own := ternary (include "serin.fullname" .) "default" .Values.serviceAccount.create }}
{{- default $own .Values.serviceAccount.name }}
{{- end }}

{{- define "serin.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}
