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

{{- /* Values of the routers whose rights the controller needs, separated by spaces. */}}
{{- define "serin.routers" -}}
{{- $provider := .Values.provider }}
{{- $of := dict "" "" "kubernetes" "" "appmesh:aws" "" "istio" "istio" "linkerd" "gatewayApi" "osm" "smi"
  "appmesh" "appMesh" "appmesh:v1beta2" "appMesh" "gatewayapi:v1" "gatewayApi" "gatewayapi:v1beta1" "gatewayApi" "xds" "" }}
{{- $needed := ternary "smi" (get $of $provider) (hasPrefix "smi:" $provider) }}
{{- if not (or (hasKey $of $provider) (hasPrefix "smi:" $provider)) }}
{{- fail (printf "provider %s has no router and no rights in this chart: use one of kubernetes, istio, gatewayapi:v1, linkerd, osm, smi:v1alpha1 to v1alpha4, appmesh, appmesh:aws and xds" $provider) }}
{{- end }}
{{- if and (eq $provider "xds") (not .Values.xds.enabled) }}
{{- fail "provider xds needs a control plane for Envoys: set xds.enabled" }}
{{- end }}
{{- $needed }}
{{- range list "smi" "gatewayApi" "istio" "appMesh" }}
{{- if and (get $.Values .) (ne . $needed) }} {{ . }}{{ end }}
{{- end }}
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
